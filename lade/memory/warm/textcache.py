"""A KV cache for rows of equal length, written in place: nothing is copied when it grows, and rows share a beginning.

Knows transformers' cache protocol, no model. R rows, H heads, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import pad
from transformers import cache_utils
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

from lade.target.sidebyside import first_of

BLOCK = 16  # tokens that buffers grow by: attention computes with all of them (`lade.target.sidebyside`)

DummyLayer = getattr(cache_utils, "DummyLayer", None)  # since transformers 5.15
WHOLE = {DynamicLayer, DynamicSlidingWindowLayer}  # whose mask may be that of all tokens


class TextLayer(CacheLayerMixin):
    """Keys and values of one layer, in buffers [R, H, room, D] that are little larger than needed.

    Attributes:
        length: tokens of a row.
    """

    is_sliding = False

    def __init__(self, rows: int, capacity: int) -> None:
        super().__init__()
        self.rows, self.capacity, self.length = rows, capacity, 0
        self.keys: Any = None
        self.values: Any = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys, self.values = (
            states.new_zeros(self.rows, states.shape[1], 0, states.shape[3]) for states in (key_states, value_states)
        )
        self.is_initialized = True

    def _reserve(self, tokens: int) -> None:
        """Make room for so many tokens of a row: whole blocks, if the capacity allows."""
        room = self.keys.shape[2]
        if tokens > room:
            more = max(min(-(-tokens // BLOCK) * BLOCK, self.capacity), tokens) - room
            self.keys, self.values = (pad(states, (0, 0, 0, more)) for states in (self.keys, self.values))

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new keys and values, [r, H, t, D] each, in the first r rows; returns all of those rows."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows, first = len(key_states), self.length
        self.length += key_states.shape[2]
        self._reserve(self.length)
        self.keys[:rows, :, first : self.length] = key_states
        self.values[:rows, :, first : self.length] = value_states
        return first_of(self.keys[:rows], self.length), first_of(self.values[:rows], self.length)

    def share(self) -> None:
        """Copy the first row to all rows."""
        if self.is_initialized:
            self.keys[1:, :, : self.length] = self.keys[:1, :, : self.length]
            self.values[1:, :, : self.length] = self.values[:1, :, : self.length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        """The name of `get_max_length` before transformers 5.14."""
        return -1


class TextCache(Cache):
    """Such layers.

    Args:
        layers: of the model, or dummies of transformers where it has no keys.
    """

    def share(self) -> None:
        """Copy the first row to all rows."""
        for layer in self._own():
            layer.share()

    def cut(self, length: int) -> None:
        """Keep the first `length` tokens of every row."""
        for layer in self._own():
            layer.length = min(layer.length, length)

    def _own(self) -> list[TextLayer]:
        return [layer for layer in self.layers if isinstance(layer, TextLayer)]


def text_cache(model: Any, rows: int, capacity: int) -> TextCache | None:
    """An empty cache; `None` if the model has layers with other kinds of state."""
    stock = DynamicCache(config=model.config).layers
    dummies = [DummyLayer is not None and type(layer) is DummyLayer for layer in stock]
    if not stock or not all(dummy or type(layer) in WHOLE for layer, dummy in zip(stock, dummies, strict=True)):
        return None
    parts = zip(stock, dummies, strict=True)
    return TextCache(layers=[layer if dummy else TextLayer(rows, capacity) for layer, dummy in parts])
