"""The two ways in which a forward's nodes are stored: packed behind one another, or padded to the longest row.

n rows of a forward, H heads, T nodes, D head size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from lade.target.changes import exchanged
from lade.target.layers import TreeLayer
from lade.target.store import LayerGroup


class PackedGroup(LayerGroup):
    """Layers whose forwards take the nodes of all rows behind one another, [1, H, sum T, D].

    A forward sees the buffers from their start, [1, H, kv_length, D]; each row's attention looks at its own slab.
    """

    def __init__(self, layers: Sequence[TreeLayer]) -> None:
        super().__init__(layers)
        self._spans: list[tuple[int, int]] = []  # of each row, where its first new node goes and how many there are

    def write(self, buffer: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        if self._index is None:
            buffer.narrow(2, self._spans[0][0], states.shape[2]).copy_(states)
        else:
            buffer.index_copy_(2, self._index.to(buffer.device), states)
        return buffer.narrow(2, 0, self.kv_length)

    def _needed(self, slots: Sequence[int], columns: Sequence[int]) -> list[int]:
        return [self.held(slot) + count for slot, count in zip(slots, columns, strict=True)]

    def _place(self, slots: Sequence[int], columns: Sequence[int], computed: Sequence[int]) -> None:
        self._spans = [
            (self.slabs.offsets[slot] + self.held(slot) + done, count - done)
            for slot, count, done in zip(slots, columns, computed, strict=True)
        ]
        self.kv_length = max(place + nodes for place, nodes in self._spans)

    def _scattered(self) -> list[int]:
        return self.places() if len(self._spans) > 1 else []

    def places(self) -> list[int]:
        """Where each new node goes in the buffers."""
        return [node for place, nodes in self._spans for node in range(place, place + nodes)]


class PaddedGroup(LayerGroup):
    """Layers whose forwards take padded rows, [n, H, T, D].

    All slots have one capacity, and those of a forward are neighbours: it sees [n, H, kv_length, D].
    """

    def __init__(self, layers: Sequence[TreeLayer]) -> None:
        super().__init__(layers)
        self._places: list[int] = []  # of each row's first new node in its slab
        self._first = 0  # slab of the first row

    def write(self, buffer: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        rows, heads, nodes, size = states.shape
        capacity = next(iter(self.slabs.capacities.values()))
        slots = buffer.view(heads, -1, capacity, size).transpose(0, 1).narrow(0, self._first, rows)
        if self._places.count(self._places[0]) == rows:
            slots.narrow(2, self._places[0], nodes).copy_(states)
        else:
            for row, place in enumerate(self._places):
                slots[row].narrow(1, place, nodes).copy_(states[row])
        return slots[:, :, : self.kv_length]

    def _bound(self, slot: int) -> float:
        return max(self._most.values())

    def _needed(self, slots: Sequence[int], columns: Sequence[int]) -> list[int]:
        self.kv_length = max(map(self.held, slots)) + max(columns)
        return [self.kv_length] * len(slots)

    def _provide(self, wanted: Mapping[int, int]) -> None:
        level = max(*wanted.values(), *self.slabs.capacities.values(), 0)
        if self.slabs.total % level or any(capacity < level for capacity in self.slabs.capacities.values()):
            self._pack(dict.fromkeys([*self.slabs.offsets, *wanted], level))
        else:
            super()._provide(dict.fromkeys(wanted, level))

    def _place(self, slots: Sequence[int], columns: Sequence[int], computed: Sequence[int]) -> None:
        self._places = [self.held(slot) + done for slot, done in zip(slots, computed, strict=True)]
        self._line_up(slots)

    def _line_up(self, slots: Sequence[int]) -> None:
        """Exchange slabs until those of the slots are neighbours in this order."""
        offsets = self.slabs.offsets
        capacity, first = self.slabs.capacities[slots[0]], offsets[slots[0]]
        if any(offsets[slot] != first + row * capacity for row, slot in enumerate(slots)):
            first = 0
            for row, slot in enumerate(slots):
                place = row * capacity
                if offsets[slot] != place:
                    self._queue.append(exchanged(offsets[slot], place, capacity))
                    other = next((each for each, offset in offsets.items() if offset == place), None)
                    if other is not None:
                        offsets[other] = offsets[slot]
                    offsets[slot] = place
        self._first = first // capacity
