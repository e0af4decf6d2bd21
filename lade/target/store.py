"""The keys and values of layers with one window: a flat buffer each, in which every slot has a slab of its own.

A slot writes the tree of a step behind its own last token, and `keep` moves the accepted path together, so its tokens
are contiguous. What changes the buffers between steps (growth, compaction, kept paths) is queued, and done by `settle`
when the next forward's integers are on the device. Knows no model.

n rows of a forward, H heads, T nodes, C nodes of a row up to the newest (C = T, unless a tree grows over several
forwards), D head size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import inf

import torch

from lade.target import layers as sizes
from lade.target.changes import Change, copied, gathered, packed, zeroed
from lade.target.layers import TreeLayer
from lade.target.slabs import Slabs
from lade.target.upload import Part, Upload

SPARE = 256  # tokens that a new slot has room for behind its first ones


class LayerGroup(ABC):
    """Layers with one window, and what they share: how many tokens each slot has, and where they lie.

    A subclass says how the nodes of a forward's rows are stored (`lade.target.groups`).

    Args:
        layers: of one window.

    Attributes:
        lengths: tokens of each slot, padding included.
        starts: first token of each slot that is still stored; the key at index k of a slab is that of token start + k.
        margin: tokens that sliding layers store beyond their window, at least.
        level: new slots get multiples of so many tokens, so that rows of unlike texts have equal slabs, which one call
            of attention takes together (`lade.target.uniform`).
        kv_length: keys that the step's forward attends to.
    """

    def __init__(self, layers: Sequence[TreeLayer]) -> None:
        self.layers, self.window = layers, layers[0].window
        self.margin, self.level = 0, 1
        self.slabs = Slabs()
        self.lengths: dict[int, int] = {}
        self.starts: dict[int, int] = {}
        self.kv_length = 0
        self._most: dict[int, float] = {}  # tokens that a slot may come to need
        self._columns: dict[int, int] = {}  # C of the step's slots
        self._index: torch.Tensor | None = None  # [sum T] places of all new nodes; `None` where it needs none
        self._sources: list[int] = []  # places of kept nodes
        self._goals: list[int] = []  # and where they go
        self._queue: list[Change] = []
        self._sent: tuple[Part, Part, Part] | None = None
        for layer in layers:
            layer.group = self

    def held(self, slot: int) -> int:
        """Stored tokens of a slot; its tree starts at this key index of its slab."""
        return self.lengths[slot] - self.starts[slot]

    def buffer_like(self, states: torch.Tensor) -> torch.Tensor:
        """[1, H, total, D] zeros for the heads, head size, type and device of states [n, H, T, D]."""
        return states.new_zeros(1, states.shape[1], self.slabs.total, states.shape[3])

    # Slots

    def open(self, slots: Sequence[int], tokens: int, most: int | None = None) -> None:
        """Give new slots memory for `tokens` and some more; `most` bounds what they grow to."""
        bound = inf if most is None else self._levelled(most + sizes.SLACK)
        for slot in slots:
            self.lengths[slot] = self.starts[slot] = 0
            self._most[slot] = bound
        capacity = max(tokens, 1, int(min(self._levelled(tokens + SPARE), bound)))
        self._provide(dict.fromkeys(slots, self._within_window(capacity, 0)))

    def _levelled(self, tokens: int) -> int:
        """Rounded up to a multiple of `level`."""
        return -(-tokens // self.level) * self.level

    def close(self, slot: int) -> None:
        """Free a slot; one whose opening failed may be open in part."""
        self.slabs.remove(slot)
        for known in (self.lengths, self.starts, self._most, self._columns):
            known.pop(slot, None)
        if not self.lengths:
            self._free()

    def _free(self) -> None:
        """Give the buffers back, when no slot needs them."""
        self.slabs = Slabs()
        self._sources, self._goals, self._queue, self._index, self._sent = [], [], [], None, None
        for layer in self.layers:
            layer.keys = layer.values = None

    def most_stored(self, nodes: int) -> int | None:
        """The largest capacity of a slot whose trees and chunks of prompts have at most `nodes` nodes.

        `None` where nothing bounds it but the text, up to its end and `SLACK` more.
        """
        if self.window is None:
            return None
        return self.window + self.margin + sizes.SLACK + max(nodes, sizes.SLACK)

    def _grown(self, slot: int, needed: int) -> int:
        """The next capacity of a slot: twice the last one, but no more than it may come to need."""
        bound = self._bound(slot)
        doubled = min(2 * self.slabs.capacities[slot], bound) if needed <= bound else needed + sizes.SLACK
        return self._within_window(max(needed, int(doubled)), needed)

    def _bound(self, slot: int) -> float:
        """Tokens that a slot's slab may come to hold."""
        return self._most[slot]

    def _within_window(self, capacity: int, needed: int) -> int:
        if self.window is None:
            return capacity
        return min(capacity, max(needed, 1, self.window + self.margin + 2 * sizes.SLACK))

    def _provide(self, wanted: Mapping[int, int]) -> None:
        """Give slots slabs of these capacities. What they do not use is zero: a masked NaN spreads."""
        left = {slot: capacity for slot, capacity in wanted.items() if not self._fits(slot, capacity)}
        if left:
            self._pack(left)

    def _fits(self, slot: int, capacity: int) -> bool:
        """Whether the buffers had room for a slab of this capacity, which the slot has then."""
        offset, held = self.slabs.offsets.get(slot), self.slabs.capacities.get(slot, 0)
        if offset is not None and self.slabs.behind(slot) >= capacity - held:
            self.slabs.place(slot, offset, capacity)
            self._queue.append(zeroed(offset + held, offset + capacity))
            return True
        gap = self.slabs.gap(capacity)
        if gap is None:
            return False
        self.slabs.place(slot, gap, capacity)
        if offset is not None:
            self._queue.append(copied(offset, gap, held))
        self._queue.append(zeroed(gap + held, gap + capacity))
        return True

    def _pack(self, capacities: Mapping[int, int]) -> None:
        moves = self.slabs.pack(capacities)
        self._queue.append(packed(self.slabs.total, moves))

    def take(self, slots: Sequence[int]) -> None:
        """Move the rows of a prefill into slots that are open, buffer by buffer."""
        self.settle()
        for layer in self.layers:
            prefix, layer.prefix = layer.prefix, None
            if prefix is None or prefix.keys is None:
                continue
            for slot in slots:
                self.lengths[slot], self.starts[slot] = prefix.length, prefix.start
            for name in ("keys", "values"):
                rows = getattr(prefix, name)
                setattr(prefix, name, None)
                if getattr(layer, name) is None:
                    setattr(layer, name, self.buffer_like(rows))
                for row, slot in enumerate(slots):
                    offset = self.slabs.offsets[slot]
                    getattr(layer, name)[0, :, offset : offset + prefix.held] = rows[row, :, : prefix.held]

    def tokens(self, buffer: torch.Tensor, slot: int, first: int) -> torch.Tensor:
        """[H, length - first, D]: the keys or values of a slot's tokens from `first` on."""
        offset = self.slabs.offsets[slot] - self.starts[slot]
        return buffer[0, :, offset + first : offset + self.lengths[slot]]

    # Steps

    def prepare(self, slots: Sequence[int], columns: Sequence[int], computed: Sequence[int]) -> None:
        """Reserve memory for a tree in each slot of a forward.

        Args:
            columns: C of each slot.
            computed: nodes of each slot that earlier forwards of the same step have written.
        """
        if self.window is not None and not any(computed):
            for slot in slots:
                if self.held(slot) > self.window - 1 + self.margin + sizes.SLACK:
                    self._compact(slot, self.window - 1 + self.margin)
        needed = self._needed(slots, columns)
        wanted = {
            slot: self._grown(slot, tokens)
            for slot, tokens in zip(slots, needed, strict=True)
            if tokens > self.slabs.capacities[slot]
        }
        if wanted:
            self._provide(wanted)
        self._columns = dict(zip(slots, columns, strict=True))
        self._place(slots, columns, computed)

    @abstractmethod
    def _needed(self, slots: Sequence[int], columns: Sequence[int]) -> Sequence[int]:
        """The capacity that each slot needs for a forward."""

    @abstractmethod
    def _place(self, slots: Sequence[int], columns: Sequence[int], computed: Sequence[int]) -> None:
        """Find where the forward's nodes are written, and `kv_length`."""

    def _compact(self, slot: int, stored: int) -> None:
        """Drop the tokens of a slot but for the last ones."""
        drop = self.held(slot) - stored
        offset = self.slabs.offsets[slot]
        self._queue.append(copied(offset + drop, offset, stored))
        self.starts[slot] += drop

    def send(self, upload: Upload) -> None:
        """Add what `settle` needs on the device."""
        places = self._scattered()
        if places or self._sources:
            self._sent = upload.add(self._sources), upload.add(self._goals), upload.add(places)

    def _scattered(self) -> Sequence[int]:
        """Places of all new nodes in the buffers, where `write` needs them on the device."""
        return ()

    def settle(self) -> None:
        """Do what is queued, with what `send` added to an upload that is sent; else transfer what is needed now."""
        sent, self._sent, self._index = self._sent, None, None
        if sent is not None and len(sent[2]):
            self._index = sent[2].there
        if self._sources:
            if sent is None:
                sources, goals = torch.tensor(self._sources), torch.tensor(self._goals)
            else:
                sources, goals = sent[0].there, sent[1].there
            self._queue.insert(0, gathered(sources, goals, self._goals))
            self._sources, self._goals = [], []
        changes, self._queue = self._queue, []
        for change in changes:
            for layer in self.layers:
                if layer.keys is not None:
                    layer.keys = change(layer.keys)
                    layer.values = change(layer.values)

    @abstractmethod
    def write(self, buffer: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Store the keys or values of a forward's nodes in a layer's buffer, and return what it attends to."""

    def discard(self, slots: Sequence[int]) -> None:
        """Clear what the last forward wrote in these slots, since a masked NaN spreads."""
        for slot in slots:
            place = self.slabs.offsets[slot] + self.held(slot)
            self._queue.append(zeroed(place, place + self._columns[slot]))

    def keep(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Make a path of each slot's tree part of its tokens and drop the other nodes.

        Args:
            paths: ascending nodes of each slot, the root first; an empty one keeps nothing.
        """
        if self._queue:  # it changes places, and comes after what is kept
            self.settle()
        for slot, path in zip(slots, paths, strict=True):
            place = self.slabs.offsets[slot] + self.held(slot)
            for index, node in enumerate(path):
                if index != node:
                    self._sources.append(place + node)
                    self._goals.append(place + index)
            self.lengths[slot] += len(path)
