"""KV cache layers of transformers' protocol: a prefill appends to one, later forwards write to its group's slots.

Knows transformers' layer protocol, no model. B rows, H heads, P tokens of a row (padding included), T nodes of a step,
D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import CacheLayerMixin

if TYPE_CHECKING:
    from lade.target.store import LayerGroup

SLACK = 64  # tokens that a sliding layer stores beyond its window, so that it does not compact in every step


class TreeLayer(CacheLayerMixin):
    """Keys and values of one layer.

    Args:
        window: of sliding attention, in tokens; `None` for full attention.

    Attributes:
        prefix: what a prefill has appended, until its rows go into slots; `None` between prefills.
        keys, values: [1, H, total, D], the slots of the group behind one another; before the first of them those of the
            cache that it was made from, or `None`.
    """

    is_croppable = False

    def __init__(self, window: int | None = None) -> None:
        super().__init__()
        self.window = window
        self.is_sliding = window is not None
        self.keys: Any = None
        self.values: Any = None
        self.prefix: Prefix | None = Prefix(window)
        self.group: LayerGroup

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new keys and values, [B, H, T, D] each; returns all keys and values that this forward attends to."""
        self.is_initialized = True
        if self.prefix is not None:
            if self.window is None and self.prefix.length == 0 and self.prefix.reserved is None:
                _reserve(self.group.layers, key_states, value_states)
            return self.prefix.append(key_states, value_states)
        keys, values = self.buffers(key_states, value_states)
        return self.group.write(keys, key_states), self.group.write(values, value_states)

    def buffers(self, key_states: torch.Tensor, value_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[1, H, total, D] of the slots, made at first for keys and values like these."""
        self.is_initialized = True
        if self.keys is None:
            self.keys, self.values = self.group.buffer_like(key_states), self.group.buffer_like(value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        if self.prefix is None:
            return self.group.kv_length, 0
        return self.prefix.length - self.prefix.start + query_length, self.prefix.start

    def get_seq_length(self) -> int:
        return self.prefix.length if self.prefix is not None else max(self.group.lengths.values(), default=0)

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        """The name of `get_max_length` before transformers 5.14."""
        return -1

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        raise NotImplementedError("a lookahead cache has no beams")


class Prefix:
    """The tokens of a prefill in one layer, in buffers [B, H, capacity, D].

    Args:
        window: as the layer's.

    Attributes:
        length: tokens seen, P.
        start: first token still stored.
        reserved: buffers for the first tokens, if those turn out to be like them.
    """

    def __init__(self, window: int | None) -> None:
        self.window = window
        self.length = self.start = 0
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None
        self.reserved: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def held(self) -> int:
        return self.length - self.start

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store tokens, [B, H, T, D]; returns all that their forward attends to."""
        held, new = self.held, keys.shape[2]
        self.length += new
        if self.window is not None and held + new > self.window + SLACK:
            return self._append_beyond_window(held, keys, values)
        reserved, self.reserved = self.reserved, None
        if reserved is not None and all(map(_alike, reserved, (keys, values))):
            self.keys, self.values = reserved
        self.keys = _appended(self.keys, held, keys)
        self.values = _appended(self.values, held, values)
        return self.keys[:, :, : held + new], self.values[:, :, : held + new]

    def _append_beyond_window(
        self, held: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A prompt longer than the window: this forward attends to all of it, the last window - 1 tokens are stored."""
        assert self.window is not None
        if self.keys is not None and self.values is not None:
            keys = torch.cat([self.keys[:, :, :held], keys], dim=2)
            values = torch.cat([self.values[:, :, :held], values], dim=2)
        kept = min(self.window - 1, keys.shape[2])
        self.start = self.length - kept
        self.keys = keys[:, :, keys.shape[2] - kept :].clone()
        self.values = values[:, :, values.shape[2] - kept :].clone()
        return keys, values


def _reserve(layers: Sequence[TreeLayer], keys: torch.Tensor, values: torch.Tensor) -> None:
    """Make the buffers of all layers for a prefill on a CPU at once, as its first layer asks for its own.

    Made one by one, between the tensors of the forward, they leave holes in the heap that the next ones do not fit
    into (`benchmarks/memory.py`).
    """
    if keys.device.type == "cpu":
        for layer in layers:
            if layer.prefix is not None and layer.prefix.length == 0:
                layer.prefix.reserved = keys.new_empty(keys.shape), values.new_empty(values.shape)


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.device == other.device


def _appended(buffer: torch.Tensor | None, held: int, states: torch.Tensor) -> torch.Tensor:
    """The buffer with `states` behind the held tokens; exact at first, doubled where more parts follow."""
    needed = held + states.shape[2]
    capacity = 0 if buffer is None else buffer.shape[2]
    if needed > capacity:
        spare = states.new_zeros(*states.shape[:2], max(needed, 2 * capacity) - held, states.shape[3])
        buffer = spare if buffer is None else torch.cat([buffer[:, :, :held], spare], dim=2)  # of as many rows
    assert buffer is not None
    buffer[:, :, held:needed] = states
    return buffer
