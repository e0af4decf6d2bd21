"""Packing the weights of a whole model for products on this CPU, and unpacking them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from lade.base.arguments import check_model
from lade.base.locks import ModelLocks
from lade.base.shown import invalid
from lade.base.wrappers import unwrapped
from lade.facts.fingerprint import keep_fingerprint
from lade.weights.packed import PackedLinear, pack, packs, unpack

NOTE = "lade_packed"  # on a model, as a walk over all its modules takes as long as a step of a small one
_locks = ModelLocks()


def pack_weights(model: Any) -> int:
    """Store the weights of a model's linear layers in the layout that this CPU multiplies fastest, in place.

    Plain and lookahead decoding both take less time, and wide steps save the most. No second copy of a weight is kept,
    but for one that an embedding shares. Products are the same up to rounding; in bfloat16 with AVX-512 they are the
    same bits. The model's checkpoint stays as it is. The model cannot be trained until `unpack_weights`, and must not
    decode meanwhile. Layers that cannot be packed stay plain: those of quantised weights, adapters, patches, or of
    dtypes that oneDNN does not pack on this machine (float64; half precision on older processors).

    Args:
        model: a causal language model of transformers on the CPU, or a wrapper around one.

    Returns:
        How many linear layers are packed.

    Raises:
        ValueError: the model is not on the CPU, or reads weights of its linear layers by itself.
    """
    check_model("model", model)
    model = unwrapped(model)
    if model.device.type != "cpu":
        raise invalid("model", "on the CPU, as packed weights are", str(model.device))
    with _locks.of(model), keep_fingerprint(model):
        worked = packs(model.dtype) and _problem(model) is None
        try:
            _pack_all(model)
            problem = _problem(model) if worked else None
        except BaseException:
            _unpack_all(model)
            raise
        if problem is not None:
            _unpack_all(model)
            raise invalid("model", "one that calls its linear layers", f"one that fails without that: {problem}")
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


def _pack_all(model: Any) -> None:
    uses = Counter(id(parameter) for module in model.modules() for parameter in module._parameters.values())
    packed = [pack(layer, tied=uses[id(getattr(layer, "weight", None))] > 1) for layer in model.modules()]
    if any(packed):
        model.__dict__[NOTE] = True


def _unpack_all(model: Any) -> int:
    model.__dict__.pop(NOTE, None)
    return sum([unpack(layer) for layer in model.modules()])


@torch.no_grad()
def _problem(model: Any) -> str | None:
    """Why the model cannot compute two tokens, or `None`."""
    try:
        model(input_ids=torch.zeros(1, 2, dtype=torch.long), use_cache=False)
    except (NotImplementedError, RuntimeError) as error:
        return str(error).partition("\n")[0]
    return None
