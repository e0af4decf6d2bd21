"""A target of the decode loop whose forwards are static steps: prompts and drafts alike.

The step chooses and walks on the device, so it fits requests whose emission chooses as its chooser does.

M lines, one per node of a step; k tokens of a top-k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from lade.core.stats import Clock
from lade.core.tree import Draft
from lade.facts.positions import position_limit
from lade.facts.temperature import follows_index
from lade.facts.vocabulary import readable
from lade.static.buckets import NODES
from lade.static.choices import Chooser, Greedy
from lade.static.kernelrows import Kernel
from lade.static.runner import StaticRunner
from lade.static.slots import StaticSlots
from lade.static.step import NOT_A_NUMBER, RIGHT, StaticStep
from lade.target.model import UNLIMITED
from lade.target.outputs import Outputs


@dataclass(eq=False)
class StaticOutputs(Outputs):
    """The output of a static step, read in one copy.

    Attributes:
        table: [M, 2 + 2k] int32 on the host (`StaticStep`).
    """

    table: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.int32))

    def greedy(self, row: int, node: int) -> int:
        return int(self.table[self.lines[row][node], 0])

    def choose_ahead(self, lines: Sequence[int], tokens: torch.Tensor) -> None:
        raise NotImplementedError("requests must choose as their static step does, got one that chooses by itself")

    def nan_rows(self, rows: Sequence[int]) -> list[int]:
        return [row for row in rows if self.table[self.lines[row][0], 1] & NOT_A_NUMBER]

    def likeliest(self) -> tuple[np.ndarray, np.ndarray]:
        top = self.table.shape[1] // 2 + 1
        return self.table[:, 2:top], np.ascontiguousarray(self.table[:, top:]).view(np.float32)


class StaticTarget:
    """A model with slots of one capacity.

    Args:
        slots: the most rows of a step.
        tokens: of the longest text, prompt and answer.
        chooser: as the requests choose.
        inverse_temperature: of the probabilities that drafters learn from.
        kernel: as of `StaticStep`.

    Raises:
        ValueError: the model is of a kind that has no static step.
    """

    packed = True

    def __init__(
        self,
        model: Any,
        slots: int,
        tokens: int,
        clock: Clock,
        chooser: Chooser | None = None,
        inverse_temperature: float = 1.0,
        kernel: Kernel | None = None,
    ) -> None:
        config = model.config.get_text_config(decoder=True)
        if follows_index(config):
            raise ValueError("model must not follow the index of tokens in its cache, got one that does")
        self.model, self.clock, self.tokens = model, clock, tokens
        self.vocabulary, self.position_limit = readable(model), position_limit(config)
        self.slots = StaticSlots(_shapes(model), slots, tokens + NODES[-1], model.device)
        self.slots.inverse_temperatures.fill_(inverse_temperature)
        self.step = StaticStep(model, self.slots, chooser or Greedy(), self.vocabulary, kernel)
        self.runner = StaticRunner(self.step)
        self.lengths: dict[int, int] = {}
        self._kept: dict[int, list[int]] = {}  # the path that the last step kept in a slot

    def open(self, slot: int, tokens: int, most: int) -> None:
        """Start an empty sequence.

        Raises:
            ValueError: it may grow beyond the slots.
        """
        if most > self.tokens:
            raise ValueError(f"most must be at most {self.tokens}, got {most}")
        self.lengths[slot] = 0

    def close(self, slot: int) -> None:
        """Free a slot."""
        self.slots.close(slot)
        del self.lengths[slot]

    def depth_limit(self, slot: int, remaining: int) -> int:
        """The largest depth of a draft: within the tokens that remain, and within the model's positions."""
        if self.position_limit is None:
            return remaining - 1
        return min(remaining - 1, self.position_limit - 1 - self.lengths[slot])

    def max_nodes(self, slots: Sequence[int]) -> int:
        """The most nodes per draft in these slots: those of all fit the largest step."""
        most = UNLIMITED if self.position_limit is None else self.position_limit - max(self.lengths[s] for s in slots)
        return max(1, min(most, NODES[-1] // len(slots)))

    @torch.no_grad()
    def forward(self, slots: Sequence[int], drafts: Sequence[Draft]) -> Outputs:
        """One step of a draft in each of these slots, which keeps what its own walk accepts."""
        with self.clock.forward(sum(map(len, drafts)), len(drafts), max(map(len, drafts))):
            output, logits = self.runner.launch(slots, drafts)
            table = output.cpu().numpy()
        lines, first = [], 0
        for slot, draft in zip(slots, drafts, strict=True):
            end = first + len(draft)
            lines.append({node: first + node for node in range(len(draft))})
            self._kept[slot] = (table[first:end, 1] & RIGHT).nonzero()[0].tolist()
            first = end
        return StaticOutputs(logits, lines, vocabulary=self.vocabulary, table=table)

    def keep(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Note one path in each slot of the last forward: the step's own, or the beginning of it where a text ends.

        Raises:
            RuntimeError: a path is another one.
        """
        for slot, path in zip(slots, paths, strict=True):
            kept = self._kept.pop(slot)
            if list(path) != kept[: len(path)]:
                raise RuntimeError(f"requests must choose as their static step does, got the path {path} for {kept}")
            self.lengths[slot] += len(path)
            if len(path) != len(kept):
                self.slots.lengths[slot] = self.lengths[slot]

    def discard(self, slots: Sequence[int]) -> None:
        """Clear what the last forward wrote in these slots, and what it kept."""
        for slot in slots:
            self.slots.cut(slot, self.lengths[slot])


def _shapes(model: Any) -> Sequence[Any]:
    """The layers of a cache that holds one token."""
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    with torch.no_grad():
        model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device), past_key_values=cache, use_cache=True)
    return cache.layers
