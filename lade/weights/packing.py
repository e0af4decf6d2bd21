"""Packing the weights of a whole model for products on this CPU, and unpacking them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from lade.base.arguments import check_model
from lade.base.locks import ModelLocks
from lade.base.shown import invalid
from lade.base.wrappers import unwrapped
from lade.facts.fingerprint import keep_fingerprint
from lade.weights.packed import PackedLinear, can_pack, pack, unpack

NOTE = "lade_packed"  # on a model, as a walk over all its modules takes as long as a step of a small one
_locks = ModelLocks()


def pack_weights(model: Any) -> int:
    """Store the weights of a model's linear layers in the layout that oneDNN multiplies fastest on this CPU, in place.

    In half precision plain and lookahead decoding take less time, and in float32 many tokens at once do; few tokens in
    float32 may be faster with plain weights (`lade.models.load` with `pack=None`). Products are the same up to
    rounding; in bfloat16 with AVX-512 they were the same bits. No second copy of a weight is kept, but for one
    that an embedding shares. The model's checkpoint stays as it is. Until `unpack_weights` the model cannot be trained,
    and while either works it must not decode.

    Layers stay plain that are small or not on the CPU, have patches or quantised weights, or whose dtype oneDNN does
    not pack on this machine: float64, and on older processors half precision.

    Args:
        model: a causal language model of transformers, or a wrapper around one.

    Returns:
        How many linear layers are packed.

    Raises:
        ValueError: `model` is no model, or one that reads weights of linear layers without calling these.
    """
    check_model("model", model)
    model = unwrapped(model)
    with _locks.of(model), keep_fingerprint(model):
        layers = [layer for layer in model.modules() if can_pack(layer)]
        if layers:
            _pack(model, layers)
        return sum(isinstance(layer, PackedLinear) for layer in model.modules())


def unpack_weights(model: Any) -> int:
    """Undo `pack_weights`, in place.

    Returns:
        How many layers were packed.

    Raises:
        ValueError: `model` is no model.
    """
    check_model("model", model)
    model = unwrapped(model)
    with _locks.of(model), keep_fingerprint(model):
        return _unpack_all(model)


def has_packed_weights(model: Any) -> bool:
    """Whether `pack_weights` packed any, and `unpack_weights` did not undo it."""
    return NOTE in model.__dict__


def _pack(model: Any, layers: Sequence[nn.Module]) -> None:
    """Pack layers, unless the model fails with them packed."""
    worked = _problem(model) is None
    uses = Counter(id(parameter) for module in model.modules() for parameter in module._parameters.values())
    try:
        for layer in layers:
            pack(layer, tied=uses[id(layer.weight)] > 1)
        problem = _problem(model) if worked else None
    except BaseException:
        _unpack_all(model)
        raise
    if problem is not None:
        _unpack_all(model)
        raise invalid("model", "one that calls its linear layers", f"one that fails without that: {problem}")
    model.__dict__[NOTE] = True


def _unpack_all(model: Any) -> int:
    model.__dict__.pop(NOTE, None)
    return sum([unpack(layer) for layer in model.modules()])


@torch.no_grad()
def _problem(model: Any) -> str | None:
    """Why the model cannot compute two tokens, or `None`."""
    try:
        model(input_ids=torch.zeros(1, 2, dtype=torch.long), use_cache=False)
    except Exception as error:  # noqa: BLE001 - the model's own
        return str(error).partition("\n")[0]
    return None
