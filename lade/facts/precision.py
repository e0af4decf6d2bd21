"""The dtype that a model computes in, and how its weights are stored. Knows no text and no cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lade.facts.sharding import local

if TYPE_CHECKING:
    import torch


def precision(model: Any) -> torch.dtype:
    """The dtype that the model computes in: autocast's where it is on, else its own."""
    import torch

    kind = model.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else model.dtype


def is_quantised(model: Any) -> bool:
    """Whether any weight is stored in another form than it is computed in, as with bitsandbytes and torchao."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    weights = map(local, model.parameters())
    return any(not weight.is_floating_point() or is_traceable_wrapper_subclass(weight) for weight in weights)


def is_offloaded(model: Any) -> bool:
    """Whether the weights, or the first of them, are elsewhere until a layer runs, as accelerate offloads them."""
    kind: str = model.device.type
    return kind == "meta"


def padding_works(model: Any) -> bool:
    """Whether transformers' own masks can hide padding: eager attention in float64 makes -inf of their lowest value."""
    import torch

    implementation = model.config.get_text_config(decoder=True)._attn_implementation
    return not (implementation == "eager" and model.dtype == torch.float64)
