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
from lade.weights.packed import PackedLinear, can_pack, lies_short, pack, unpack

NOTE = "lade_packed"  # on a model, as a walk over all its modules takes as long as a step of a small one
PACKED, SHORT = "packed", "packed in 16 bits"  # what stands there
_locks = ModelLocks()


def pack_weights(model: Any, short: bool = False) -> int:
    """What `lade.pack_weights` does.

    Args:
        short: whether float32 weights whose numbers are all bfloat16's are packed in 16 bits: loops multiply them.
    """
    check_model("model", model)
    model = unwrapped(model)
    with _locks.of(model), keep_fingerprint(model):
        layers = [layer for layer in model.modules() if can_pack(layer, short)]
        if layers:
            _pack(model, layers, short)
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


def packing_of(model: Any) -> str:
    """How weights are packed; empty where none are."""
    found: str = model.__dict__.get(NOTE, "")
    return found


def has_packed_weights(model: Any) -> bool:
    """Whether `pack_weights` packed any, and `unpack_weights` did not undo it."""
    return bool(packing_of(model))


def _pack(model: Any, layers: Sequence[nn.Module], short: bool) -> None:
    """Pack layers, unless the model fails with them packed; in 16 bits, unless it fails with them so.

    What asks a weight for its dtype, as an adapter does, is told bfloat16 of one in 16 bits.
    """
    worked = _problem(model) is None
    uses = Counter(id(parameter) for module in model.modules() for parameter in module._parameters.values())
    tied = [uses[id(layer.weight)] > 1 for layer in layers]
    try:
        for way in (True, False) if short else (False,):
            for layer, shared in zip(layers, tied, strict=True):
                unpack(layer)
                pack(layer, shared, way)
            problem = _problem(model) if worked else None
            if problem is None:
                break
    except BaseException:
        _unpack_all(model)
        raise
    if problem is not None:
        _unpack_all(model)
        raise invalid("model", "one that calls its linear layers", f"one that fails without that: {problem}")
    if any(isinstance(layer, PackedLinear) for layer in layers):
        model.__dict__[NOTE] = SHORT if any(map(lies_short, model.modules())) else PACKED


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
