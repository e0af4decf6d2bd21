"""The host's side of a step's inputs: one array per size, which each step fills anew. Knows no device.

N nodes of all rows, padded to a bucket; R rows, padded to a bucket; W words of 64 ancestors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from lade.core.tree import Draft
from lade.kernels.rows import CHAIN
from lade.static.inputs import CERTAIN, NEVER, UNASKED, Size, StepFields, StepRow
from lade.target.pieces import ancestor_words, words_for


class Packing:
    """Inputs of steps of one size.

    Args:
        spare: the slot of padding nodes and rows.
        capacity: tokens of a slot.
        pinned: whether a CUDA device reads them while the host goes on.
    """

    def __init__(self, size: Size, spare: int, capacity: int, pinned: bool = False) -> None:
        self._numbers = torch.zeros(size.numbers, dtype=torch.long, pin_memory=pinned)
        self._array, self._capacity = self._numbers.numpy(), capacity
        self._own, self._nodes = StepFields(self._array, size), np.arange(size.nodes)
        self._pad(spare)
        self._padding = self._array.copy()

    def fill(self, rows: Sequence[StepRow]) -> torch.Tensor:
        """`StepInputs.numbers` of a draft in the slot of each row; all padding without rows. The next call overwrites
        it."""
        self._array[:] = self._padding
        own, first, place = self._own, 0, 0
        for index, row in enumerate(rows):
            end = first + len(row.draft.tokens)
            own.rows[index], own.lengths[index] = row.slot, row.length
            own.firsts[index], own.counts[index], own.trees[index] = first, end - first, place
            own.slots[first:end] = row.slot
            self._add(row.draft, first, end)
            place = self._add_tree(row.draft, first, end, place)
            first = end
        self._move(rows)
        return self._numbers

    def _pad(self, spare: int) -> None:
        own = self._own
        own.slots[:] = own.rows[:] = spare
        own.indices[:] = own.parents[:] = self._nodes
        own.claims[:], own.orders[:], own.trees[:] = NEVER, UNASKED, CHAIN
        own.sources[:] = own.goals[:] = spare * self._capacity

    def _add(self, draft: Draft, first: int, end: int) -> None:
        """A tree without its words."""
        own, count = self._own, end - first
        own.ids[first:end] = draft.tokens
        own.indices[first:end] = self._nodes[:count]
        np.add(draft.parents, first, out=own.parents[first:end])
        own.parents[first] = first
        own.depths[first:end] = draft.depths
        asked = draft.queries[0] if draft.queries else count - 1
        before = draft.depths[asked] if draft.queries else count
        np.maximum(own.depths[first:end] - before, UNASKED, out=own.orders[first:end])
        claims = own.claims[first:end]
        claims[:] = own.ids[first:end]
        chosen = set(draft.queries).difference((0,), draft.unreadable)  # nodes that a choice may accept
        if len(chosen) < count - 1:
            claims[[node for node in range(count) if node not in chosen]] = NEVER
        claims[: asked + 1] = CERTAIN

    def _add_tree(self, draft: Draft, first: int, end: int, place: int) -> int:
        """Its words, and what kernels read of it at a place of the integers. Returns the place behind it."""
        own, count = self._own, end - first
        words = ancestor_words(draft.parents, words_for(count))
        own.words[first:end, : words.shape[1]] = words
        middle = place + count
        own.integers[place:middle] = own.depths[first:end]
        own.integers[middle : middle + words.size] = words.ravel()
        return middle + words.size

    def _move(self, rows: Sequence[StepRow]) -> None:
        sources, goals, place = self._own.sources, self._own.goals, 0
        for row in rows:
            begin = row.slot * self._capacity
            for source, goal in row.moves:
                sources[place], goals[place] = begin + source, begin + goal
                place += 1
