"""A model's twin for captured steps: the same parameters, with one kernel where transformers' code has several.

Replaced are modules whose code is LLaMA's, instruction for instruction, whatever their family: RMS norms, rotary
positions, SiLU gates and decoder layers of these; and linear layers (`lade.static.multiplied`). The model itself is not
changed, so whatever else computes with it meanwhile does as before.
"""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

import torch
from transformers.activations import SiLUActivation
from transformers.models.llama import modeling_llama as llama

from lade.kernels import between
from lade.static import multiplied
from lade.target.code import is_code_of, is_stock
from lade.target.fused.watch import global_hooks, is_unpatched

ROTATION = "apply_rotary_pos_emb"  # the function that attention modules call, by its name in their files
HALVES = "rotate_half"  # that this function calls
SILUS = (SiLUActivation, torch.nn.SiLU)


def condensed(model: Any, multiplies: bool = True) -> Any:
    """The twin, made anew; the model itself where nothing is replaced.

    Args:
        multiplies: linear layers are replaced, too.
    """
    return _twin(model, {}, multiplies and not any(global_hooks()))


def _twin(module: Any, known: dict[int, Any], multiplies: bool) -> Any:
    """A copy of the modules above replaced ones; all others are those of the model."""
    if id(module) not in known:
        known[id(module)] = module  # where modules hold each other
        children = {
            name: child if child is None else _twin(child, known, multiplies) for name, child in module._modules.items()
        }
        kind = _kind(module, children, multiplies)
        if kind is not type(module) or any(children[name] is not module._modules[name] for name in children):
            copy = known[id(module)] = object.__new__(kind)
            copy.__dict__.update(module.__dict__)
            copy.__dict__["_modules"] = children
    return known[id(module)]


def _kind(module: Any, children: dict[str, Any], multiplies: bool) -> Any:
    """The class that replaces a module's own, or this itself. May replace the twins of its children."""
    kind: Any = type(module)
    if "forward" in module.__dict__:  # of an instance: a patch
        return kind
    if multiplies and multiplied.is_linear(module):
        return multiplied.Linear
    if is_code_of(kind.forward, llama.LlamaRMSNorm.forward):
        return _derived(kind, _norm)
    if is_code_of(kind.forward, llama.LlamaMLP.forward) and isinstance(module.act_fn, SILUS):
        return _derived(kind, multiplied.gated)
    if multiplies and is_stock(kind.forward, llama.LlamaDecoderLayer.forward):
        return _derived(kind, multiplied.layer) if _adds(module, children) else kind
    names = getattr(getattr(kind.forward, "__code__", None), "co_names", ())
    if multiplies and {*multiplied.SHARED} <= {*names}:
        multiplied.share(children)
    if ROTATION in names:
        return _turning(kind) if _turns_halves(kind.forward.__globals__.get(ROTATION)) else kind
    return kind


def _adds(layer: Any, children: dict[str, Any]) -> bool:
    """Whether a decoder layer's norm and MLP are replaced, and nothing else runs where they are called."""
    expected = {"post_attention_layernorm": _norm, "mlp": multiplied.gated}
    return all(
        type(children[name]).forward is forward and is_unpatched(layer._modules[name])
        for name, forward in expected.items()
    )


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
