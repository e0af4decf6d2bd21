"""What might come next after a place in a tree: the mixture of what all stages (`lade.memory.stages`) expect there.

A place is what the stages need to know of a path: its last tokens, and where it matches the request's own text and the
reference. Stages that agree on a token add up. Knows tokens, no trees, no requests and no model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from lade.memory.ngrams import NgramPool
from lade.memory.pools import Pool
from lade.memory.recycle import CONTEXT, NOTHING, Context
from lade.memory.stages import (
    RECYCLED,
    REFERENCE,
    SUFFIX,
    TOP,
    WARM,
    WINDOW,
    depth_bucket,
    gram_bucket,
    match_bucket,
    warm_bucket,
)
from lade.memory.suffix import OwnText, ReferenceText

SHORTEST = 2  # tokens that a match in the own text must have
BEGINNING = 2  # tokens that a match with the beginning of the reference counts for, before anything was said
CERTAIN = (1.0,)
RANKED = tuple(0.5 ** (rank + 1) for rank in range(TOP))  # n-grams, the most recently seen first

Share = tuple[int, int, Sequence[int], Sequence[float]]  # stage, bucket, tokens that it expects, their probabilities
Match = tuple[int, int]  # index in a text where a match goes on, and how many tokens it has
Place = tuple[Context, Match | None, Match | None]  # last tokens, matches with the own text and the reference


class Warm(Protocol):
    """The model's predictions from before any text (`lade.memory.backoff.Backoff`)."""

    def entry(self, context: Context) -> tuple[int, list[int], list[float]]:
        """How many of the last tokens it knows together, tokens that may follow, their probabilities."""
        ...


class Mixture:
    """What one request's stages expect.

    Args:
        pool: recycled predictions and the stages' weights.
        recycles: whether recycled predictions have a say.
        own: prompt and output so far, where they have a say.
        reference: a text that the output may repeat.
        ngrams: of the Jacobi window.
        warm: the model's predictions from before any text.
    """

    def __init__(
        self,
        pool: Pool,
        recycles: bool,
        own: OwnText | None,
        reference: ReferenceText | None,
        ngrams: NgramPool | None,
        warm: Warm | None,
    ) -> None:
        self.pool, self.recycles, self.own, self.reference = pool, recycles, own, reference
        self.ngrams, self.warm = ngrams, warm

    @property
    def repeats(self) -> bool:
        """Whether the last token stood in the text before."""
        return self.own is not None and self.own.cursor.length > 0

    def place(self, tokens: Sequence[int]) -> Place:
        """The end of the text so far."""
        recent = tokens[-CONTEXT:]
        own = reference = None
        if self.own is not None and self.own.cursor.length >= SHORTEST:
            own = (self.own.cursor.end, self.own.cursor.length)
        if self.reference is not None and self.reference.cursor.end >= 0:
            reference = (self.reference.cursor.end, self.reference.cursor.length or BEGINNING)
        return (*[NOTHING] * (CONTEXT - len(recent)), *recent), own, reference  # type: ignore[return-value]

    def follow(self, place: Place, token: int) -> Place:
        """The place after one more token: matches go on or end, new ones are not looked for."""
        context, own, reference = place
        if own is not None:
            own = self._on(self.own, own, token)
        if reference is not None:
            reference = self._on(self.reference, reference, token)
        return (context[1], context[2], context[3], token), own, reference

    def _on(self, text: OwnText | ReferenceText | None, match: Match, token: int) -> Match | None:
        end, length = match
        return (end + 1, length + 1) if text is not None and text.at(end) == token else None

    def extend(self, tokens: Sequence[int]) -> None:
        """The request's text goes on; places from before are void."""
        for text in (self.own, self.reference):
            if text is not None:
                text.extend(tokens)

    def expect(self, place: Place, depth: int, floor: float) -> tuple[dict[int, float], dict[int, int]]:
        """Tokens that may come next.

        Args:
            depth: of the node at this place.
            floor: a stage's tokens of less probability than this are left out.

        Returns:
            token -> probability, token -> the first stage that expects it.
        """
        weights, left = self.pool.calibration.weights, 1.0
        masses: dict[int, float] = {}
        stages: dict[int, int] = {}
        for stage, bucket, tokens, probabilities in self._shares(place, depth_bucket(depth)):
            share = left * weights[stage][bucket]
            left -= share
            for token, probability in zip(tokens, probabilities, strict=False):
                mass = share * probability
                if mass < floor:
                    break
                if token in masses:
                    masses[token] += mass
                else:
                    masses[token], stages[token] = mass, stage
            if left < floor:
                break
        return masses, stages

    def learn(self, place: Place, depth: int, choice: int) -> None:
        """Tell every stage what the model chose at a place."""
        self.pool.calibration.learn(
            [
                (stage, bucket, probabilities[tokens.index(choice)] if choice in tokens else 0.0)
                for stage, bucket, tokens, probabilities in self._shares(place, depth_bucket(depth))
            ]
        )

    def _shares(self, place: Place, depth: int) -> Iterator[Share]:
        """What every stage that knows something expects, most specific stage first."""
        context, own, reference = place
        if reference is not None and self.reference is not None:
            token = self.reference.at(reference[0])
            if token is not None:
                yield REFERENCE, match_bucket(depth, reference[1]), (token,), CERTAIN
        if own is not None and self.own is not None:
            yield SUFFIX, match_bucket(depth, own[1]), (self.own.at(own[0]),), CERTAIN
        if self.ngrams is not None:
            tokens, length = self.ngrams.following(context)
            if tokens:
                yield WINDOW, gram_bucket(depth, length), tokens[:TOP], RANKED
        if self.recycles:
            for index, known, probabilities in self.pool.table.lookup(context):
                yield RECYCLED + index, depth, known, probabilities
        if self.warm is not None:
            length, known, probabilities = self.warm.entry(context)
            yield WARM, warm_bucket(depth, length), known, probabilities
