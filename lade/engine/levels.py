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
    """For processors of `purity.ROW_PURE`, none of them `PARTICULAR`; nobody sees scores.

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
        self._no_text = torch.zeros(1, 1, dtype=torch.long, device=text.device)
        self.key: Hashable = (noise is None, text.device, *map(parameters_of, known[own:]))

    def choose(self, row: int, node: int) -> int:
        return checked(choose_together([Reached(self, row, node)])[0])

    def warped(self, scores: torch.Tensor) -> torch.Tensor:
        """[M, V] scores of rows whose emissions have this key, from those that `own_scores` gives."""
        for processor in self._shared:
            scores = processor(self._no_text, scores)
        return scores

    def own_scores(self, row: int, node: int) -> torch.Tensor:
        """[1, V], after the processors that run for the row alone; without any, a part of the outputs."""
        request, _ = self.rows[row]
        scores, processors = self.outputs.at(row, node).to(self.text.device), self._own[request.row]
        if processors:
            scores = scores.to(torch.float32, copy=True)
        for processor in processors:
            scores = processor(self.text.of(request.row), scores)
        return scores

    def noise_of(self, row: int, vocabulary: int) -> torch.Tensor:
        """[V], that of the token which is chosen next."""
        request, _ = self.rows[row]
        assert self.noise is not None
        return self.noise.at(request.emitted, vocabulary, certain=True)[request.row]


def choose_together(reached: Sequence[Reached]) -> list[int]:
    """The tokens that plain decoding chooses after nodes of different rows; -1 where there is no distribution.

    Args:
        reached: by row; all emissions have the same key, and began with the same outputs.
    """
    first = reached[0].emission
    own = torch.cat([emission.own_scores(row, node) for emission, row, node in reached])  # a copy, of one row too
    scores = first.warped(own.float())  # [M, V]
    if first.noise is None:
        found = scores.argmax(-1)
    else:
        noise = [emission.noise_of(row, scores.shape[-1]) for emission, row, _ in reached]
        found = draw_each(scores.softmax(-1), noise)
    tokens: list[int] = found.tolist()
    return tokens
