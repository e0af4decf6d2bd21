"""A target of the decode loop whose forwards of drafts are static steps.

Prompts, whose sizes differ, are read by the target that it stands for; then each slot's keys and values move here. A
slot is open in one of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from lade.core.tree import Draft
from lade.static.buckets import NODES
from lade.static.graphs import Graphs
from lade.static.inputs import StepRow
from lade.static.outputs import StaticOutputs, lines_of
from lade.target.call import UNLIMITED
from lade.target.model import HFTarget
from lade.target.outputs import Outputs
from lade.target.stock import fill, window_of

WAY, FUSED_WAY = "static", "static fused"  # of attention, in the statistics


class StaticTarget:
    """A model with slots of one capacity, which doubles when a text needs it.

    Args:
        eager: reads prompts.
        graphs: of steps of the same model, with as many slots as rows may decode at once.
    """

    packed = False  # prompts have forwards of their own

    def __init__(self, eager: HFTarget, graphs: Graphs) -> None:
        self.eager, self.graphs = eager, graphs
        self.clock, self.vocabulary = eager.clock, eager.vocabulary
        self.untimed = False  # whether the last forward was the first of its size, which is captured
        self.undisturbed = False
        self.lengths: dict[int, int] = {}  # tokens of the slots that decode, those of `_moves` included
        self._shifts: dict[int, int] = {}  # of the same slots: the position of the next token, beyond the length
        self._moves: dict[int, list[tuple[int, int]]] = {}  # places of tokens that the next step moves
        self._compacted = False  # whether the device has kept the accepted paths of the last forward itself
        self._asked: list[int] = []  # slots whose prompts the last forward has read to their ends

    def prefill(
        self, input_ids: torch.Tensor, generation_config: Any, model_kwargs: dict[str, Any], most: int
    ) -> Outputs:
        """As `HFTarget.prefill`."""
        return self.place(self.read(input_ids, generation_config, model_kwargs), input_ids, model_kwargs, most)

    def read(self, input_ids: torch.Tensor, generation_config: Any, model_kwargs: dict[str, Any]) -> torch.Tensor:
        """As `HFTarget.read`."""
        return self.eager.read(input_ids, generation_config, model_kwargs)

    def place(
        self,
        logits: torch.Tensor,
        input_ids: torch.Tensor,
        model_kwargs: dict[str, Any],
        most: int,
        slots: Sequence[int] | None = None,
    ) -> Outputs:
        """As `HFTarget.place`."""
        first = self.eager.place(logits, input_ids, model_kwargs, most, slots)
        self.take(range(input_ids.shape[0]) if slots is None else slots)
        return first

    def open(self, slot: int, tokens: int, most: int) -> None:
        """Start an empty sequence."""
        self.eager.open(slot, tokens, most)

    def close(self, slot: int) -> None:
        """Free a slot."""
        if slot not in self.lengths:
            self.eager.close(slot)
            return
        self.graphs.step.slots.close(slot)
        self._forget(slot)

    def _forget(self, slot: int) -> None:
        del self.lengths[slot], self._shifts[slot], self._moves[slot]

    def depth_limit(self, slot: int, remaining: int) -> int:
        """The largest depth of a draft: within the tokens that remain, and within the model's positions."""
        limit = self.eager.position_limit
        return remaining - 1 if limit is None else min(remaining - 1, limit - 1 - self._position(slot))

    def max_nodes(self, slots: Sequence[int]) -> int:
        """The most nodes per draft in these slots: those of all fit the largest step."""
        limit = self.eager.position_limit
        most = UNLIMITED if limit is None else limit - max(map(self._length, slots))
        return max(1, most if slots[0] not in self.lengths else min(most, NODES[-1] // len(slots)))

    def _length(self, slot: int) -> int:
        return self.lengths[slot] if slot in self.lengths else self._read_tokens(slot)

    def _read_tokens(self, slot: int) -> int:
        """Tokens of a slot that reads its prompt, without padding."""
        return self.eager.cache.lengths[slot] - self.eager.masks.first[slot]

    def _position(self, slot: int) -> int:
        """Of the next token."""
        return self.lengths[slot] + self._shifts[slot] if slot in self.lengths else self.eager.positions[slot]

    def forward(self, slots: Sequence[int], drafts: Sequence[Draft]) -> Outputs:
        """One forward of a draft in each of these slots, all of which decode, or read their prompts."""
        if slots[0] not in self.lengths:
            self._asked = [slot for slot, draft in zip(slots, drafts, strict=True) if draft.queries]
            return self.eager.forward(slots, drafts)
        self._compacted = False
        self.make_room(max(self.lengths[slot] + len(draft) for slot, draft in zip(slots, drafts, strict=True)))
        rows = [
            StepRow(slot, draft, self.lengths[slot], self._moves[slot])
            for slot, draft in zip(slots, drafts, strict=True)
        ]
        sizes = len(self.graphs.sizes)
        with self.clock.waiting():
            found, logits = self.graphs.run(rows)
        self.untimed = len(self.graphs.sizes) > sizes
        self._count(drafts)
        self._moves |= {slot: [] for slot in slots}
        lines = lines_of(drafts)
        own, back = self.graphs.step.slots, self.graphs.back
        return StaticOutputs(
            logits, lines, vocabulary=self.vocabulary, found=found, slots=own, step_slots=slots, back=back
        )

    def settle(self, slots: Sequence[int]) -> None:
        """Let these slots hold what was kept of the last forward, before steps that the device makes by itself."""
        for slot in slots:
            self.graphs.step.slots.move(slot, self._moves[slot])
            self._moves[slot] = []

    def made(self, drafts: Sequence[Draft]) -> None:
        """The device has computed these drafts by itself, in slots that were settled, and kept the accepted paths."""
        self._compacted = True
        self._count(drafts)

    def _count(self, drafts: Sequence[Draft]) -> None:
        self.clock.count(sum(map(len, drafts)), len(drafts), max(map(len, drafts)))
        self.clock.attended([FUSED_WAY if self.graphs.fused else WAY])

    def make_room(self, tokens: int) -> None:
        """Larger slots have graphs of their own."""
        if tokens > self.graphs.step.slots.capacity:
            self.graphs = self.graphs.larger(tokens)

    def keep(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Keep one path in each slot of the last forward, and drop all other nodes."""
        if slots[0] not in self.lengths:
            self.eager.keep(slots, paths)
            self.take(self._asked)
            return
        for slot, path in zip(slots, paths, strict=True):
            place = self.lengths[slot]
            if not self._compacted:
                self._moves[slot] = [(place + node, place + index) for index, node in enumerate(path) if node != index]
            self.lengths[slot] += len(path)

    def discard(self, slots: Sequence[int]) -> None:
        """Clear what the last forward wrote in these slots."""
        if slots[0] not in self.lengths:
            self.eager.discard(slots)
            return
        for slot in slots:
            self.graphs.step.slots.cut(slot, self.lengths[slot])

    def take(self, slots: Sequence[int]) -> None:
        """Move slots from the target that has read their prompts, without padding."""
        for slot in slots:
            stock, length, padding = self._empty_cache(), self._read_tokens(slot), self.eager.masks.first[slot]
            shift = self.eager.positions[slot] - length
            self.eager.cache.export(stock, [slot], margin=True)
            self.eager.close(slot)
            self.make_room(length)
            self.graphs.step.slots.load(slot, stock.layers, padding, shift=shift)
            self.lengths[slot], self._shifts[slot], self._moves[slot] = length, shift, []

    def give_back(self, slots: Sequence[int]) -> None:
        """Move slots to the target that has read their prompts."""
        for slot in slots:
            own, length, moves = self.graphs.step.slots, self.lengths[slot], self._moves[slot]
            own.move(slot, moves)
            stock = self._empty_cache()
            for index, layer in enumerate(stock.layers):
                states = own.tokens(index, slot, length, self._stored(layer))
                if states is not None:
                    fill(layer, *states, length)
            self.eager.open(slot, length, None)
            self.eager.cache.load(slot, stock.layers)
            self.eager.positions[slot] = length + self._shifts[slot]
            own.close(slot)
            self._forget(slot)

    def _stored(self, layer: Any) -> int | None:
        """The window of a sliding layer, and what the target that reads prompts stores beyond it."""
        window = window_of(layer)
        return None if window is None else window + self.eager.cache.groups[window].margin

    def export(self, stock: DynamicCache) -> None:
        """Write the slots into a cache of transformers, in their order."""
        self.give_back(list(self.lengths))
        self.eager.export(stock)

    def _empty_cache(self) -> DynamicCache:
        return DynamicCache(config=self.eager.model.config.get_text_config(decoder=True))
