"""The keys and values of layers with one window: a flat buffer each, in which every slot has a slab of its own.

A slot writes the tree of a step behind its own last token, and `keep` moves the accepted path together, so its tokens
are contiguous. What changes the buffers between steps (growth, compaction, kept paths) is queued, and done by `settle`
when the next forward's integers are on the device. Knows no model.

n rows of a forward, H heads, T nodes, C nodes of a row up to the newest (C = T, unless a tree grows over several
forwards), D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

import torch

from lade.target import layers as sizes
from lade.target.layers import TreeLayer
from lade.target.slabs import Move, Slabs
from lade.target.upload import Part, Upload

SPARE = 256  # tokens that a new slot has room for behind its first ones

Change = Callable[[torch.Tensor], torch.Tensor]  # of a buffer [1, H, total, D]; returns it, or another in its place


class LayerGroup:
    """Layers with one window, and what they share: how many tokens each slot has, and where they lie.

    Args:
        layers: of one window.

    Attributes:
        packed: whether a forward takes the nodes of its rows behind one another, [1, H, sum T, D]. Otherwise it takes
            them padded, [n, H, T, D]; then all slots have one capacity, and those of a forward are neighbours.
        lengths: tokens of each slot, padding included.
        starts: first token of each slot that is still stored; the key at index k of a slab is that of token start + k.
        margin: tokens that sliding layers store beyond their window, at least.
        kv_length: keys that the step's forward attends to: from the buffers' start where it is packed, of each slot
            from the slab's start otherwise.
    """

    def __init__(self, layers: Sequence[TreeLayer]) -> None:
        self.layers, self.window = layers, layers[0].window
        self.packed = False
        self.margin = 0
        self.slabs = Slabs()
        self.lengths: dict[int, int] = {}
        self.starts: dict[int, int] = {}
        self.kv_length = 0
        self._most: dict[int, float] = {}  # tokens that a slot may come to need
        self._columns: dict[int, int] = {}  # C of the step's slots
        self._places: list[int] = []  # of each row's first new node: in the buffers, or in its slab where padded
        self._nodes: list[int] = []  # T of each row, where packed
        self._first = 0  # slab of the first row, where padded
        self._index: torch.Tensor | None = None  # [sum T] places of all new nodes; `None` where they are contiguous
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
        bound = inf if most is None else most + sizes.SLACK
        for slot in slots:
            self.lengths[slot] = self.starts[slot] = 0
            self._most[slot] = bound
        capacity = max(tokens, 1, int(min(tokens + SPARE, bound)))
        self._provide(dict.fromkeys(slots, self._within_window(capacity, 0)))

    def close(self, slot: int) -> None:
        self.slabs.remove(slot)
        del self.lengths[slot], self.starts[slot], self._most[slot]
        self._columns.pop(slot, None)
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
        """The next capacity of a slot: twice the last one, but no more than it, or its neighbours, may come to need."""
        bound = self._most[slot] if self.packed else max(self._most.values())
        doubled = min(2 * self.slabs.capacities[slot], bound) if needed <= bound else needed + sizes.SLACK
        return self._within_window(max(needed, int(doubled)), needed)

    def _within_window(self, capacity: int, needed: int) -> int:
        if self.window is None:
            return capacity
        return min(capacity, max(needed, 1, self.window + self.margin + 2 * sizes.SLACK))

    def _provide(self, wanted: Mapping[int, int]) -> None:
        """Give slots slabs of these capacities. What they do not use is zero: a masked NaN spreads."""
        if not self.packed:
            level = max(*wanted.values(), *self.slabs.capacities.values(), 0)
            if self.slabs.total % level or any(capacity < level for capacity in self.slabs.capacities.values()):
                self._pack(dict.fromkeys([*self.slabs.offsets, *wanted], level))
                return
            wanted = dict.fromkeys(wanted, level)
        left = {slot: capacity for slot, capacity in wanted.items() if not self._fits(slot, capacity)}
        if left:
            self._pack(left)

    def _fits(self, slot: int, capacity: int) -> bool:
        """Whether the buffers had room for a slab of this capacity, which the slot has then."""
        offset, held = self.slabs.offsets.get(slot), self.slabs.capacities.get(slot, 0)
        if offset is not None and self.slabs.behind(slot) >= capacity - held:
            self.slabs.place(slot, offset, capacity)
            self._queue.append(_zeroed(offset + held, offset + capacity))
            return True
        gap = self.slabs.gap(capacity)
        if gap is None:
            return False
        self.slabs.place(slot, gap, capacity)
        if offset is not None:
            self._queue.append(_copied(offset, gap, held))
        self._queue.append(_zeroed(gap + held, gap + capacity))
        return True

    def _pack(self, capacities: Mapping[int, int]) -> None:
        moves = self.slabs.pack(capacities)
        self._queue.append(_packed(self.slabs.total, moves))

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
        if not self.packed:
            self.kv_length = max(map(self.held, slots)) + max(columns)
        wanted = {}
        for slot, count in zip(slots, columns, strict=True):
            needed = self.held(slot) + count if self.packed else self.kv_length
            if needed > self.slabs.capacities[slot]:
                wanted[slot] = self._grown(slot, needed)
        if wanted:
            self._provide(wanted)
        self._columns = dict(zip(slots, columns, strict=True))
        self._places = [self.held(slot) + done for slot, done in zip(slots, computed, strict=True)]
        if self.packed:
            self._places = [self.slabs.offsets[slot] + place for slot, place in zip(slots, self._places, strict=True)]
            self._nodes = [count - done for count, done in zip(columns, computed, strict=True)]
            self.kv_length = max(place + nodes for place, nodes in zip(self._places, self._nodes, strict=True))
        else:
            self._line_up(slots)

    def _compact(self, slot: int, stored: int) -> None:
        """Drop the tokens of a slot but for the last ones."""
        drop = self.held(slot) - stored
        offset = self.slabs.offsets[slot]
        self._queue.append(_copied(offset + drop, offset, stored))
        self.starts[slot] += drop

    def _line_up(self, slots: Sequence[int]) -> None:
        """Exchange slabs until those of the slots are neighbours in this order."""
        offsets = self.slabs.offsets
        capacity, first = self.slabs.capacities[slots[0]], offsets[slots[0]]
        if any(offsets[slot] != first + row * capacity for row, slot in enumerate(slots)):
            first = 0
            for row, slot in enumerate(slots):
                place = row * capacity
                if offsets[slot] != place:
                    self._queue.append(_exchanged(offsets[slot], place, capacity))
                    other = next((each for each, offset in offsets.items() if offset == place), None)
                    if other is not None:
                        offsets[other] = offsets[slot]
                    offsets[slot] = place
        self._first = first // capacity

    def reach(self, end: int) -> None:
        """Let the step's forward, where packed, see the buffers up to this token at least."""
        self.kv_length = max(self.kv_length, end)

    def send(self, upload: Upload) -> None:
        """Add what `settle` needs on the device."""
        places: list[int] = []
        if self.packed and len(self._places) > 1:
            for place, nodes in zip(self._places, self._nodes, strict=True):
                places += range(place, place + nodes)
        if places or self._sources:
            self._sent = upload.add(self._sources), upload.add(self._goals), upload.add(places)

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
            self._queue.insert(0, self._gathered(sources, goals))
            self._sources, self._goals = [], []
        changes, self._queue = self._queue, []
        for change in changes:
            for layer in self.layers:
                if layer.keys is not None:
                    layer.keys = change(layer.keys)
                    layer.values = change(layer.values)

    def _gathered(self, sources: torch.Tensor, goals: torch.Tensor) -> Change:
        """One gather for all rows; with one run of goals it needs no index to write."""
        first, last, count = self._goals[0], self._goals[-1], len(self._goals)

        def change(buffer: torch.Tensor) -> torch.Tensor:
            kept = buffer.index_select(2, sources.to(buffer.device))
            if last - first == count - 1:
                buffer.narrow(2, first, count).copy_(kept)
            else:
                buffer.index_copy_(2, goals.to(buffer.device), kept)
            return buffer

        return change

    def write(self, buffer: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Store the keys or values of a forward's nodes, and return what it attends to.

        Args:
            buffer: of a layer.
            states: [1, H, sum T, D] where packed, [n, H, T, D] otherwise.

        Returns:
            [1, H, kv_length, D] where packed, [n, H, kv_length, D] otherwise.
        """
        if not self.packed:
            return self._write_padded(buffer, states)
        if self._index is None:
            buffer.narrow(2, self._places[0], states.shape[2]).copy_(states)
        else:
            buffer.index_copy_(2, self._index.to(buffer.device), states)
        return buffer.narrow(2, 0, self.kv_length)

    def _write_padded(self, buffer: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        rows, heads, nodes, size = states.shape
        capacity = next(iter(self.slabs.capacities.values()))
        slots = buffer.view(heads, -1, capacity, size).transpose(0, 1).narrow(0, self._first, rows)
        if self._places.count(self._places[0]) == rows:
            slots.narrow(2, self._places[0], nodes).copy_(states)
        else:
            for row, place in enumerate(self._places):
                slots[row].narrow(1, place, nodes).copy_(states[row])
        return slots[:, :, : self.kv_length]

    def discard(self, slots: Sequence[int]) -> None:
        """Clear what the last forward wrote in these slots, since a masked NaN spreads."""
        for slot in slots:
            place = self.slabs.offsets[slot] + self.held(slot)
            self._queue.append(_zeroed(place, place + self._columns[slot]))

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


def _zeroed(begin: int, end: int) -> Change:
    def change(buffer: torch.Tensor) -> torch.Tensor:
        buffer[:, :, begin:end].zero_()
        return buffer

    return change


def _copied(source: int, goal: int, tokens: int) -> Change:
    def change(buffer: torch.Tensor) -> torch.Tensor:
        buffer[:, :, goal : goal + tokens] = buffer[:, :, source : source + tokens].clone()
        return buffer

    return change


def _exchanged(one: int, other: int, tokens: int) -> Change:
    def change(buffer: torch.Tensor) -> torch.Tensor:
        held = buffer[:, :, one : one + tokens].clone()
        buffer[:, :, one : one + tokens] = buffer[:, :, other : other + tokens]
        buffer[:, :, other : other + tokens] = held
        return buffer

    return change


def _packed(total: int, moves: Sequence[Move]) -> Change:
    def change(buffer: torch.Tensor) -> torch.Tensor:
        packed = buffer.new_zeros(1, buffer.shape[1], total, buffer.shape[3])
        for source, goal, tokens in moves:
            packed[:, :, goal : goal + tokens] = buffer[:, :, source : source + tokens]
        return packed

    return change
