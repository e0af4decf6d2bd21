"""The warm table as a source of the scored tree, and how far it is believed in the text at hand. Knows no model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lade.memory.recycle import CONTEXT, NOTHING, Context
from lade.memory.source import Share, Source, Stage, Start, Warm, by_depth


def warm_bucket(depth: int, length: int) -> int:
    """Bucket of a warm entry by how many tokens of the context it knows: `CONTEXT` + 1 per depth bucket."""
    return depth * (CONTEXT + 1) + length


@dataclass(frozen=True, slots=True)
class CoveragePolicy:
    """How much of a warm table's probability counts, by how often the text's tokens were among its predictions.

    The ratio of tokens found to probability claimed is near 1 for a calibrated table and near 0 for a useless one.

    Attributes:
        prior: tokens found as claimed before any observation.
        prompt: weight of a token of the prompt, which the model did not write.
        places: tokens of the prompt that are looked at, the last ones.
        enough: ratio from which all probability counts; below, its square does.
        least: share of probability below which the table predicts nothing.
    """

    prior: float = 1.0
    prompt: float = 0.5
    places: int = 48
    enough: float = 0.4
    least: float = 0.25


COVERAGE = CoveragePolicy()


class FromWarmTable(Source):
    """The warm table's prediction for the longest suffix of the context that it knows.

    Attributes:
        share: of its probabilities that counts.
    """

    setting = "warm"
    stages = (Stage("warm", by_depth(*[0.9] * (CONTEXT + 1))),)

    def __init__(self, first: int, warm: Warm) -> None:
        super().__init__(first)
        self._entry = warm.entry
        self._context: Context = (NOTHING, NOTHING, NOTHING, NOTHING)
        self._found = self._claimed = COVERAGE.prior
        self.share = 1.0

    @classmethod
    def open(cls, start: Start, first: int) -> FromWarmTable | None:
        if start.warm is None:
            return None
        source = cls(first, start.warm)
        source._cover(start.tokens[-COVERAGE.places :], COVERAGE.prompt)
        return source

    @property
    def suffices(self) -> bool:
        return self.share == 1

    def expect(self, part: Context, depth: int) -> Iterable[Share]:
        length, tokens, probabilities = self._entry(part)
        if self.share < 1:
            probabilities = [self.share * probability for probability in probabilities]
        if not tokens or self.share < COVERAGE.least:
            return ()
        return ((self.first, warm_bucket(depth, length), tokens, probabilities),)

    def extend(self, tokens: Sequence[int]) -> None:
        self._cover(tokens, 1.0)

    def _cover(self, tokens: Sequence[int], weight: float) -> None:
        """Compare the predictions with the tokens that came."""
        for token in tokens:
            _, said, probabilities = self._entry(self._context)
            self._found += weight * (token in said)
            self._claimed += weight * sum(probabilities)
            self._context = (*self._context[1:], token)
        self.share = min(1.0, self._found / self._claimed / COVERAGE.enough) ** 2
