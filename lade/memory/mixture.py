"""What may come next at a place in a tree: the mixture of what all sources (`lade.memory.sources`) predict there.

A place is what the sources need of a path: its context, and a part per source that tracks. Sources that agree on a
token add up. Knows tokens, no trees, no requests, no model, and no source by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lade.memory.pools import Pool
from lade.memory.recycle import CONTEXT, NOTHING, Context, Entry
from lade.memory.source import Share, Source, depth_bucket

Place = Sequence[Any]  # the context; then, if a tracking source predicts something, the parts of all of them


class Mixture:
    """What one request's sources predict together.

    Args:
        pool: the weights of the stages.
        sources: of the request, most specific first.

    Attributes:
        learns: whether a source learns from the model's predictions.
    """

    def __init__(self, pool: Pool, sources: Sequence[Source]) -> None:
        self.pool, self.sources = pool, sources
        self.learns = any(source.learns for source in sources)
        self._tracking = [source for source in sources if source.tracks]
        self._follows = [(slot, source.follow) for slot, source in enumerate(self._tracking, 1)]
        slots = {source: slot for slot, source in enumerate(self._tracking, 1)}
        self._expects = [(slots.get(source, 0), source.expect) for source in sources]  # with the slot of their part
        self._untracked = [(0, source.expect) for source in sources if not source.tracks]

    @property
    def repeats(self) -> bool:
        """Whether the last token occurred earlier in the text."""
        return any(source.repeats for source in self.sources)

    def place(self, tokens: Sequence[int]) -> Place:
        """The end of the text so far."""
        recent = tokens[-CONTEXT:]
        context = (*[NOTHING] * (CONTEXT - len(recent)), *recent)
        parts = [source.begin() for source in self._tracking]
        return (context,) if all(part is None for part in parts) else (context, *parts)

    def follow(self, place: Place, token: int) -> Place:
        """The place after one more token: matches continue or end, new ones are not searched."""
        context: Context = place[0]
        context = (context[1], context[2], context[3], token)
        if len(place) == 1:
            return (context,)
        parts: list[Any] = [context]
        tracked = False
        for slot, follow in self._follows:
            part = place[slot]
            if part is not None and (part := follow(part, token)) is not None:
                tracked = True
            parts.append(part)
        return parts if tracked else (context,)

    def extend(self, tokens: Sequence[int]) -> None:
        """The request's text grew; places from before are invalid."""
        for source in self.sources:
            source.extend(tokens)

    def expect(self, place: Place, depth: int, floor: float) -> tuple[dict[int, float], dict[int, int]]:
        """Tokens that may come next.

        Args:
            depth: of the node at this place.
            floor: a stage's tokens of less probability than this are left out.

        Returns:
            token -> probability, token -> the first stage that predicts it.
        """
        weights, left = self.pool.calibration.weights, 1.0
        masses: dict[int, float] = {}
        stages: dict[int, int] = {}
        depth = depth_bucket(depth)
        for slot, expect in self._untracked if len(place) == 1 else self._expects:
            part = place[slot]
            if part is None:
                continue
            for stage, bucket, tokens, probabilities in expect(part, depth):
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
                    return masses, stages
        return masses, stages

    def weigh(self, place: Place, depth: int, choice: int) -> None:
        """Update the weights with what the model chose at a place."""
        self.pool.calibration.learn(
            [
                (stage, bucket, probabilities[tokens.index(choice)] if choice in tokens else 0.0)
                for stage, bucket, tokens, probabilities in self._shares(place, depth_bucket(depth))
            ]
        )

    def learn(self, predictions: Sequence[tuple[Context, Entry]]) -> None:
        """Teach the sources the model's predictions of one step by context, the accepted path last."""
        for source in self.sources:
            if source.learns:
                source.learn(predictions)

    def _shares(self, place: Place, depth: int) -> Iterator[Share]:
        """What every source predicts, most specific stage first."""
        for slot, expect in self._untracked if len(place) == 1 else self._expects:
            part = place[slot]
            if part is not None:
                yield from expect(part, depth)
