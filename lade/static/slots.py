"""Keys and values of a static step: slots of fixed capacity in buffers that never move; their lengths on the device.

All buffers of one shape lie in one tensor, so that a step's accepted paths are moved together by one gather. Knows the
layers of transformers' caches, no model. L buffers of a stack, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache

from lade.kernels import between
from lade.static.buckets import NODES, capacity_bucket
from lade.static.layers import Reach, StaticTreeLayer, stacked
from lade.target.stock import contents, length_of


class StaticSlots:
    """Slots of one capacity, and a spare one where a step's padding is written.

    Args:
        layers: of a cache of transformers that holds at least one token; they show the shapes.
        count: slots.
        tokens: that each slot must hold, the nodes of a step included.

    Attributes:
        capacity: tokens of a slot, C.
        spare: the slot of padding.
        stacks: [L, H, total, D] per shape.
        cache: what the model is given in a step.
        lengths: [slots + 1] tokens in each slot.
        shifts: [slots + 1] position of each slot's next token, beyond its length.
        emitted: [slots + 1] tokens that each slot's request has emitted, for its noise.
        inverse_temperatures: [slots + 1] of the probabilities that a step returns.
        offsets: [slots + 1] first place of each slot.
        reach: what its layers write and read in a step.
    """

    def __init__(self, layers: Sequence[Any], count: int, tokens: int, device: torch.device) -> None:
        self.spare, capacity = count, capacity_bucket(tokens)
        places = torch.arange(count + 1, device=device)
        self.offsets = places * capacity
        self.lengths, self.shifts, self.emitted = (torch.zeros_like(places) for _ in range(3))
        self.inverse_temperatures = torch.ones(count + 1, device=device)
        self._heats: dict[int, float] = {}  # the same, where they are not 1
        self._firsts: dict[int, list[int]] = {}  # slot -> per layer the first token that it was given
        self.reach = Reach(count, capacity, self.offsets)
        total = count * capacity + max(NODES[-1], capacity)
        self.stacks, buffers = stacked(layers, total)
        own = [StaticTreeLayer(self.reach, buffers[i]) if i in buffers else layer for i, layer in enumerate(layers)]
        self.cache = Cache(layers=own)  # those without keys of their own stay as they are

    @property
    def count(self) -> int:
        return self.spare

    @property
    def capacity(self) -> int:
        return self.reach.capacity

    @property
    def next_positions(self) -> torch.Tensor:
        """[slots + 1] of the token behind each slot's."""
        return self.lengths + self.shifts

    def load(self, slot: int, layers: Sequence[Any], padding: int = 0, emitted: int = 0, shift: int = 0) -> None:
        """Begin an empty slot with the layers of a cache of transformers with one row; between two steps.

        Args:
            padding: tokens before the text.
            shift: position of its next token, beyond its length.
        """
        first = slot * self.capacity - padding
        self._firsts[slot] = [0] * len(layers)
        for index, (own, layer) in enumerate(zip(self.cache.layers, layers, strict=True)):
            held = contents(layer) if isinstance(own, StaticTreeLayer) else None
            if held is not None:
                length = length_of(layer)
                dropped = length - held[0].shape[2]  # by sliding layers, as it is not seen any more
                skipped = max(0, padding - dropped)
                begin = first + dropped + skipped
                own.keys[:, :, begin : first + length] = held[0][:, :, skipped:]
                own.values[:, :, begin : first + length] = held[1][:, :, skipped:]
                self.lengths[slot] = length - padding
                self._firsts[slot][index] = max(0, dropped - padding)
        self.emitted[slot], self.shifts[slot] = emitted, shift

    def tokens(
        self, layer: int, slot: int, length: int, window: int | None
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """A copy of the [1, H, held, D] keys and values in a layer: of all of a slot, or those that a window needs.

        Args:
            layer: its index.
            window: tokens, of which the next one is the last.
        """
        own = self.cache.layers[layer]
        if not isinstance(own, StaticTreeLayer):
            return None
        first = slot * self.capacity
        begin = first + max(self._firsts[slot][layer], 0 if window is None else length - window + 1)
        return own.keys[:, :, begin : first + length].clone(), own.values[:, :, begin : first + length].clone()

    def move(self, slot: int, moves: Sequence[tuple[int, int]]) -> None:
        """Move tokens of a slot, between two steps."""
        first = slot * self.capacity
        for source, goal in moves:  # ascending, and never to a place that is still to be read
            for stack in self.stacks:
                stack[:, :, first + goal] = stack[:, :, first + source]

    def heat(self, slots: Sequence[int], inverse_temperatures: Sequence[float]) -> bool:
        """Set inverse temperatures. Returns whether they were as they are now."""
        changed = [
            (slot, value)
            for slot, value in zip(slots, inverse_temperatures, strict=True)
            if self._heats.get(slot, 1.0) != value
        ]
        for slot, value in changed:
            self._heats[slot] = value
            self.inverse_temperatures[slot] = value
        return not changed

    def copy_from(self, other: StaticSlots) -> None:
        """Take over all slots of smaller ones of the same model."""
        for own, others in zip(self.stacks, other.stacks, strict=True):
            for slot in range(self.count):
                mine, theirs = slot * self.capacity, slot * other.capacity
                own[:, :, mine : mine + other.capacity] = others[:, :, theirs : theirs + other.capacity]
        self.lengths.copy_(other.lengths)
        self.shifts.copy_(other.shifts)
        self.emitted.copy_(other.emitted)
        self.inverse_temperatures.copy_(other.inverse_temperatures)
        self._heats, self._firsts = dict(other._heats), dict(other._firsts)

    def close(self, slot: int) -> None:
        """Empty a slot."""
        self.cut(slot, 0)
        self.emitted[slot] = 0

    def cut(self, slot: int, length: int) -> None:
        """Clear a slot's tokens from the one at `length` on: a masked NaN spreads."""
        first = slot * self.capacity
        for stack in self.stacks:
            stack[:, :, first + length : first + self.capacity] = 0
        self.lengths[slot] = length

    def settle(self, rows: torch.Tensor, lengths: torch.Tensor, sources: torch.Tensor, goals: torch.Tensor) -> None:
        """Move tokens that were kept of the last step, and set the lengths of slots.

        Args:
            rows, lengths: [R] slots and their tokens.
            sources, goals: [N] places.
        """
        self._copy(sources, goals)
        self.lengths.index_copy_(0, rows, lengths)

    def _copy(self, sources: torch.Tensor, goals: torch.Tensor) -> None:
        """Copy tokens from [N] places to others, but for those of the spare slot. In each slot both ascend, and no goal
        lies behind its source."""
        for stack in self.stacks:
            if self.reach.kernels:
                between.move(stack, sources, goals, self.spare * self.capacity)
            else:
                stack.index_copy_(2, goals, stack.index_select(2, sources))

    def aim(self, rows: torch.Tensor, slots: torch.Tensor, indices: torch.Tensor) -> None:
        """Say where a step's nodes are written, before its forward.

        Args:
            rows: [R] slots of its rows.
            slots, indices: [N] of its nodes, and their places behind the slots' tokens.
        """
        self.reach.aim(rows, self.offsets[slots] + self.lengths[slots] + indices)

    def keep(self, right: torch.Tensor, depths: torch.Tensor, slots: torch.Tensor, new: torch.Tensor) -> None:
        """Move the accepted nodes of a step behind their slots' tokens, and count them.

        Args:
            right: [N] bool, accepted nodes; in each slot a path.
            depths: [N] of the nodes, which is their place in the path.
            slots: [N] of the nodes.
            new: [N] bool, accepted nodes after which a token is emitted.
        """
        refuse = self.offsets[self.spare] + torch.arange(len(right), device=right.device)
        goals = torch.where(right, self.offsets[slots] + self.lengths[slots] + depths, refuse)
        self._copy(self.reach.places, goals)
        self.lengths.index_add_(0, slots, right.long())
        self.emitted.index_add_(0, slots, new.long())
