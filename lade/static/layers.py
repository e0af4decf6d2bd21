"""The layers of a model's cache in a static step: where they write a step's nodes, and what its rows read.

Knows no lengths. R rows of a step, N nodes, C tokens of a slot, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from transformers.cache_utils import CacheLayerMixin

from lade.kernels import between
from lade.target.stock import contents


class Reach:
    """What all layers have of a step, set before its forward.

    Args:
        count: slots, without the spare one.
        capacity: tokens of a slot.
        offsets: [slots + 1] first place of each slot.

    Attributes:
        places: [N] where its nodes are written.
        rows: [R] slots of its rows.
        reads: [R * C] places of these slots, where they are gathered.
        whole: whether layers hand out all of their buffers, for attention that finds a row's keys by itself.
        kernels: whether kernels write to them (`lade.kernels.between`).
    """

    def __init__(self, count: int, capacity: int, offsets: torch.Tensor) -> None:
        self.count, self.capacity, self.offsets = count, capacity, offsets
        self.places = self.rows = self.reads = offsets
        self.whole = self.kernels = False

    def aim(self, rows: torch.Tensor, places: torch.Tensor) -> None:
        """Begin a step."""
        self.rows, self.places = rows, places
        if not (self.whole or self._alone):
            keys = torch.arange(self.capacity, device=rows.device)
            self.reads = (self.offsets[rows][:, None] + keys).flatten()

    def store(self, both: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write [1, H, N, D] keys and values of the step's nodes to their places of a layer's [2, H, total, D]."""
        if self.kernels and between.store_fits(both, keys, values):
            between.store(both, self.places, keys, values)
        else:
            both.index_copy_(2, self.places, torch.cat([keys, values]))

    @property
    def _alone(self) -> bool:
        return self.count == len(self.rows) == 1

    def seen(self, buffers: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """[R, H, C, D] for each of a layer's buffers [K, H, total, D]: the slots of the step's rows; or all of each."""
        if self.whole:
            return buffers[:, None].unbind()
        if self._alone:
            return buffers.narrow(2, 0, self.capacity)[:, None].unbind()  # without a copy
        count, heads, _, size = buffers.shape
        found = buffers.index_select(2, self.reads).view(count, heads, -1, self.capacity, size)
        return found.transpose(1, 2).unbind()


class Buffers(NamedTuple):
    """[1, H, total, D] keys and values of a layer, and [2, H, total, D] both where they are neighbours in memory."""

    keys: torch.Tensor
    values: torch.Tensor
    both: torch.Tensor | None


class StaticTreeLayer(CacheLayerMixin):
    """Keys and values of one layer; those of a step are written together where both lie together."""

    is_compileable, is_sliding, is_croppable = True, False, False

    def __init__(self, reach: Reach, buffers: Buffers) -> None:
        super().__init__()
        self.reach, self.both, self.is_initialized = reach, buffers.both, True
        self.keys, self.values = buffers.keys, buffers.values

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """All is there."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store [1, H, N, D] keys and values of a step's nodes; returns the [R, H, C, D] that its rows attend to."""
        assert self.keys is not None
        assert self.values is not None
        if self.both is not None:
            self.reach.store(self.both, key_states, value_states)
            keys, values = self.reach.seen(self.both)
            return keys, values
        self.keys.index_copy_(2, self.reach.places, key_states)
        self.values.index_copy_(2, self.reach.places, value_states)
        return self.reach.seen(self.keys)[0], self.reach.seen(self.values)[0]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.reach.capacity, 0

    def get_seq_length(self) -> int:
        return 0  # positions are given

    def get_max_length(self) -> int:
        return self.reach.capacity

    def get_max_cache_shape(self) -> int:
        """The name of `get_max_length` before transformers 5.14."""
        return self.reach.capacity


def stacked(layers: Sequence[Any], total: int) -> tuple[list[torch.Tensor], dict[int, Buffers]]:
    """Zeros for all layers, one tensor per shape, and each layer's part of them, in the same memory."""
    found: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    for index, layer in enumerate(layers):
        for which, states in enumerate(contents(layer) or ()):
            alike = states.shape[1], states.shape[3], states.dtype, states.device
            found.setdefault(alike, []).append((index, which))
    stacks, parts, both = [], dict[tuple[int, int], torch.Tensor](), dict[int, torch.Tensor]()
    for (heads, size, dtype, device), members in found.items():
        stack = torch.zeros(len(members), heads, total, size, dtype=dtype, device=device)  # type: ignore[call-overload]
        stacks.append(stack)
        for place, (index, which) in enumerate(members):
            parts[index, which] = stack[place : place + 1]
            if which == 1 and (index, 0) in members:  # its keys come before it
                both[index] = stack[place - 1 : place + 1]
    return stacks, {i: Buffers(parts[i, 0], parts[i, 1], both.get(i)) for i, which in parts if which == 0}
