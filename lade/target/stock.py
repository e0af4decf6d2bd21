"""The layers of transformers' caches: what a text's beginning is read from, and its end written to.

A dynamic layer holds its tokens alone, and is given other tensors. A static layer has room for a fixed number of tokens
and is written in place; one with a sliding window rolls once it is full, and is used only for texts that fit.

B rows, H heads, P tokens, D head size.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin, DynamicSlidingWindowLayer, StaticLayer


def window_of(layer: CacheLayerMixin) -> int | None:
    """Tokens of the sliding window beyond which a layer drops others; `None` where it keeps all that it is used for."""
    return layer.sliding_window if isinstance(layer, DynamicSlidingWindowLayer) else None


def length_of(layer: CacheLayerMixin) -> int:
    """Tokens that a layer has seen, P."""
    return int(layer.get_seq_length()) if layer.is_initialized else 0


def contents(layer: CacheLayerMixin) -> tuple[torch.Tensor, torch.Tensor] | None:
    """[B, H, held, D] keys and values of the last tokens that a layer has seen; `None` where it holds none."""
    if not layer.is_initialized or layer.keys is None or not layer.keys.numel():
        return None
    if not isinstance(layer, StaticLayer):
        return layer.keys, layer.values
    held = length_of(layer)
    return (layer.keys[:, :, :held], layer.values[:, :, :held]) if held else None


def snapshot(layer: CacheLayerMixin) -> CacheLayerMixin:
    """A layer with the contents of this one, which stay when this one is extended."""
    kept = copy(layer)
    held = contents(layer) if isinstance(layer, StaticLayer) else None  # others get new tensors
    if held is not None:
        kept.keys, kept.values = (states.clone() for states in held)
        kept.cumulative_length = layer.cumulative_length.clone()
    return kept


def fill(layer: Any, keys: torch.Tensor, values: torch.Tensor, length: int) -> None:
    """Make a layer hold the last tokens of a text, as plain decoding leaves it.

    Args:
        keys, values: [B, H, held, D]; all tokens of the text for a static layer.
        length: tokens of the text.
    """
    if not layer.is_initialized:
        layer.lazy_initialization(keys, values)
    if isinstance(layer, StaticLayer):
        _fill_in_place(layer, keys, values, length)
        return
    layer.keys, layer.values = keys, values
    if isinstance(layer, DynamicSlidingWindowLayer):
        layer.cumulative_length = length


def _fill_in_place(layer: Any, keys: torch.Tensor, values: torch.Tensor, length: int) -> None:
    layer.keys[:, :, :length] = keys
    layer.values[:, :, :length] = values
    layer.cumulative_length.fill_(length)
    if layer.is_sliding:
        layer.cumulative_length_int = length  # the same number, on the host
