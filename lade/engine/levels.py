"""Choosing for several rows together: after the nodes that they reach at one depth, then at the next.

Logits processors take less time for several rows at once than for each alone. Those that read the text, and those in
front of them, run for each row alone; the rest run once for all rows where they are the same. M rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch

from lade.core.noise import Noise, checked, draw_each
from lade.core.processors import parameters_of
from lade.core.request import Request
from lade.engine.emission import OnText
from lade.engine.nucleus import without_sort
from lade.engine.purity import TEXT_BLIND
from lade.engine.stopping import StopRule
from lade.engine.stream import Stream
from lade.engine.text import Text, UnreadText


class Reached(NamedTuple):
    """A node of a row, whose path is emitted."""

    emission: LevelByLevel
    row: int
    node: int


class LevelByLevel(OnText):
    """Nobody sees scores.

    Args:
        processors: of `purity.ROW_PURE`, or any for a single request; none of them `PARTICULAR`.

    Attributes:
        key: emissions of equal keys may choose together (`choose_together`).
    """

    def __init__(
        self,
        requests: Sequence[Request],
        stream: Stream,
        processors: Any,
        ends: StopRule,
        text: Text | UnreadText,
        noise: Noise | None,
    ) -> None:
        super().__init__(requests, stream, processors, ends, text, noise)
        known = list(processors or ())
        own = max((place for place, each in enumerate(known, 1) if type(each) not in TEXT_BLIND), default=0)
        self._own = [list(each or ())[:own] for each in self.processors]
        self._shared = list(without_sort(known[own:], text.device))
        self._no_text = UnreadText(text.device).of(0)
        self.key: Hashable = (noise is None, text.device, *map(parameters_of, known[own:]))

    def choose(self, row: int, node: int) -> int:
        return checked(choose_together([Reached(self, row, node)], [self.own_scores(row, node)])[0])

    def warped(self, scores: torch.Tensor) -> torch.Tensor:
        """[M, V] scores of rows whose emissions have this key, from those that `own_scores` gives."""
        for processor in self._shared:
            scores = processor(self._no_text, scores)
        return scores

    def own_scores(self, row: int, node: int) -> torch.Tensor:
        """[1, V], after the processors that run for the row alone; without any perhaps a part of the outputs."""
        request, _ = self.rows[row]
        processors = self._own[request.row]
        scores = self.outputs.at(row, node).to(self.text.device, torch.float32, copy=bool(processors))
        for processor in processors:
            scores = processor(self.text.of(request.row), scores)
        return scores

    def noise_of(self, row: int, scores: torch.Tensor) -> torch.Tensor:
        """[V], that of the token which is chosen next from [M, V] scores."""
        request, _ = self.rows[row]
        assert self.noise is not None
        return self.noise.at(request.emitted, scores.shape[-1], scores.dtype, certain=True)[request.row]


def choose_together(reached: Sequence[Reached], scores: Sequence[torch.Tensor]) -> list[int]:
    """The tokens that plain decoding chooses after nodes of different rows; -1 where there is no distribution.

    Args:
        reached: their emissions have the same key.
        scores: [1, V] each, as `own_scores` gives them, of one dtype.
    """
    first = reached[0].emission
    warped = first.warped(torch.cat(list(scores)))  # [M, V]; of one row a copy, too
    if first.noise is None:
        found = warped.argmax(-1)
    else:
        noise = [emission.noise_of(row, warped) for emission, row, _ in reached]
        found = draw_each(warped.softmax(-1), noise)
    tokens: list[int] = found.tolist()
    return tokens
