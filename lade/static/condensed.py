"""A model's twin for captured steps: the same parameters, with one kernel where transformers' code has several.

Replaced are modules whose code is LLaMA's, instruction for instruction, whatever their family: RMS norms, rotary
positions and SiLU gates. The model itself is not changed, so whatever else computes with it meanwhile does as before.
"""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

import torch
from transformers.activations import SiLUActivation
from transformers.models.llama import modeling_llama as llama

from lade.kernels import between
from lade.target.code import is_code_of

ROTATION = "apply_rotary_pos_emb"  # the function that attention modules call, by its name in their files
HALVES = "rotate_half"  # that this function calls
SILUS = (SiLUActivation, torch.nn.SiLU)


def condensed(model: Any) -> Any:
    """The twin, made anew; the model itself where nothing is replaced."""
    return _twin(model, {})


def _twin(module: Any, known: dict[int, Any]) -> Any:
    """A copy of the modules above replaced ones; all others are those of the model."""
    if id(module) not in known:
        known[id(module)] = module  # where modules hold each other
        children = {name: child if child is None else _twin(child, known) for name, child in module._modules.items()}
        kind = _kind(module)
        if kind is not type(module) or any(children[name] is not module._modules[name] for name in children):
            copy = known[id(module)] = object.__new__(kind)
            copy.__dict__.update(module.__dict__)
            copy.__dict__["_modules"] = children
    return known[id(module)]


def _kind(module: Any) -> Any:
    """The class that replaces a module's own, or this itself."""
    kind: Any = type(module)
    if "forward" in module.__dict__:  # of an instance: a patch
        return kind
    if is_code_of(kind.forward, llama.LlamaRMSNorm.forward):
        return _derived(kind, _norm)
    if is_code_of(kind.forward, llama.LlamaMLP.forward) and isinstance(module.act_fn, SILUS):
        return _derived(kind, _gated)
    if ROTATION in getattr(getattr(kind.forward, "__code__", None), "co_names", ()):
        return _turning(kind) if _turns_halves(kind.forward.__globals__.get(ROTATION)) else kind
    return kind


def _turns_halves(rotation: Any) -> bool:
    """Whether a function is LLaMA's, and what it calls, too: others rotate neighbours."""
    if not is_code_of(rotation, llama.apply_rotary_pos_emb):
        return False
    return is_code_of(rotation.__globals__.get(HALVES), llama.rotate_half)


@functools.lru_cache(maxsize=256)
def _derived(kind: Any, forward: Any) -> Any:
    return type(kind.__name__, (kind,), {"forward": forward})


def _norm(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    if between.norm_fits(hidden_states, self.weight):
        return between.rms_norm(hidden_states, self.weight, self.variance_epsilon)
    return llama.LlamaRMSNorm.forward(self, hidden_states)


def _gated(self: Any, x: torch.Tensor) -> Any:
    gates, values = self.gate_proj(x), self.up_proj(x)
    if between.gates_fit(gates, values):
        return self.down_proj(between.gated(gates, values))
    return self.down_proj(self.act_fn(gates) * values)


@functools.lru_cache(maxsize=256)
def _turning(kind: Any) -> Any:
    """A class of attention whose rotary positions are one kernel."""
    old = kind.forward
    names = old.__globals__ | {ROTATION: _rotate}
    own = FunctionType(old.__code__, names, old.__name__, old.__defaults__, old.__closure__)
    own.__kwdefaults__ = old.__kwdefaults__
    return _derived(kind, own)


def _rotate(query: Any, key: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
    if unsqueeze_dim == 1 and between.rotation_fits(query, key, cos, sin):
        return between.rotate(query, key, cos, sin)
    return llama.apply_rotary_pos_emb(query, key, cos, sin, unsqueeze_dim)
