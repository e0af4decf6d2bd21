"""Skipping attention and MLP sub-layers of a model: a skipped one adds zero to the residual stream.

Only forwards of the thread or task that applies it skip; others on the same model are complete. Knows the names of
sub-layers in model families; nothing of drafting.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from lade.base.locks import fork_safe_lock
from lade.base.shown import invalid
from lade.target.skipset import SkipSet

LAYERS = ("layers", "h")  # names inside the decoder
ATTENTION = ("self_attn", "attn", "attention", "self_attention")  # names inside a layer
MLP = ("mlp", "feed_forward", "block_sparse_moe")
RESIDUAL = "residual"  # what a sub-layer takes that adds itself, as BLOOM's do
FEED = ("fc1", "fc2")  # in a layer that is its own MLP

StandIn = Callable[[Callable[..., Any], torch.Tensor], Any]  # the module's forward, hidden states -> its output

_skipped: ContextVar[frozenset[int]] = ContextVar("lade_skipped", default=frozenset())  # ids of modules
_lock = fork_safe_lock()
_replaced: dict[int, _Replaced] = {}  # by the module's id


@dataclass(slots=True)
class _Replaced:
    """A module whose forward checks whether it is skipped.

    Attributes:
        own: the forward in the instance's `__dict__` before, `None` if there was none.
        ours: the forward there now.
        users: scopes that need it.
    """

    own: Any
    ours: Callable[..., Any]
    users: int = 0


class Skipping:
    """A model's sub-layers that are skipped together.

    Args:
        model: a causal language model of transformers.
        layers: its sub-layers to skip.

    Raises:
        ValueError: the model has no such sub-layers, or not under a known name.
    """

    def __init__(self, model: Any, layers: SkipSet) -> None:
        decoder = decoder_layers(model)
        layers.check(len(decoder))
        self.modules: list[tuple[Any, StandIn]] = []
        shared = getattr(model.config.get_text_config(decoder=True), "num_kv_shared_layers", 0)
        if shared and layers.attention:
            raise invalid("layers.attention", "(), as layers of the model share keys and values", layers.attention)
        for layer in layers.attention:
            self.modules.append((_named(decoder[layer], ATTENTION), _no_attention))
        for layer in layers.mlp:
            self.modules += _mlp(decoder[layer])
        self._ids = frozenset(id(module) for module, _ in self.modules)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Skip them in forwards of this thread or task inside the scope, and restore the model at its end."""
        token = _skipped.set(self._ids)
        done = []
        try:
            for module, stand_in in self.modules:
                _replace(module, stand_in)
                done.append(module)
            yield
        finally:
            for module in done:
                _put_back(module)
            _skipped.reset(token)


def is_skipping() -> bool:
    """Whether forwards of this thread or task skip sub-layers now."""
    return bool(_skipped.get())


def decoder_layers(model: Any) -> Any:
    """The model's decoder layers, first to last. ValueError if they have no known name."""
    for decoder in (model.get_decoder(), model.base_model, getattr(model, "model", None)):
        for name in LAYERS:
            if isinstance(found := getattr(decoder, name, None), torch.nn.ModuleList):
                return found
    raise invalid("model", f"one whose decoder layers are named {' or '.join(LAYERS)}", model)


def _named(layer: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        if isinstance(found := getattr(layer, name, None), torch.nn.Module):
            if RESIDUAL in inspect.signature(found.forward).parameters:
                raise invalid("model", "one whose layers add their sub-layers to the residual stream", found)
            return found
    raise invalid("model", f"one whose decoder layers have one of {', '.join(names)}", layer)


def _mlp(layer: Any) -> list[tuple[Any, StandIn]]:
    feeds = [getattr(layer, name, None) for name in FEED]
    if None not in feeds:
        return [(feeds[0], _passed_on), (feeds[1], _nothing)]
    return [(_named(layer, MLP), _no_mlp())]


def _no_attention(own: Callable[..., Any], hidden: torch.Tensor) -> tuple[torch.Tensor, None]:
    return torch.zeros_like(hidden), None  # no attention weights


def _passed_on(own: Callable[..., Any], hidden: torch.Tensor) -> torch.Tensor:
    return hidden


def _nothing(own: Callable[..., Any], hidden: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(hidden)


def _no_mlp() -> StandIn:
    """Some mixtures of experts return the router's scores too: the first call runs one token to see the outputs."""
    others: list[int] = []

    def stand_in(own: Callable[..., Any], hidden: torch.Tensor) -> Any:
        if not others:
            output = own(hidden[:1, :1])
            others.append(len(output) - 1 if isinstance(output, tuple) else 0)
        nothing = torch.zeros_like(hidden)
        return (nothing, *[None] * others[0]) if others[0] else nothing

    return stand_in


def _replace(module: Any, stand_in: StandIn) -> None:
    with _lock:
        entry = _replaced.get(id(module))
        if entry is None:
            entry = _Replaced(module.__dict__.get("forward"), _skippable(module, module.forward, stand_in))
            module.__dict__["forward"] = entry.ours
            _replaced[id(module)] = entry
        entry.users += 1


def _put_back(module: Any) -> None:
    with _lock:
        entry = _replaced[id(module)]
        entry.users -= 1
        if entry.users:
            return
        del _replaced[id(module)]
        if module.__dict__.get("forward") is entry.ours:  # else a later patch is on top and calls ours
            if entry.own is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = entry.own


def _skippable(module: Any, whole: Callable[..., Any], stand_in: StandIn) -> Callable[..., Any]:
    @functools.wraps(whole)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if id(module) not in _skipped.get():
            return whole(*args, **kwargs)
        return stand_in(whole, args[0] if args else kwargs["hidden_states"])

    return forward
