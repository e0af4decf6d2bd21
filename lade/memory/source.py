"""What a source of the scored tree is: the protocol that `lade.memory.mixture` works with.

A source predicts the next token from one kind of evidence, such as a match in the text or a table of predictions. A new
one is a subclass of `Source` and a row of `lade.memory.sources.SOURCES`. Knows no drafter and no model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from lade.config.settings import Settings
from lade.memory.counts import FollowerCounts
from lade.memory.ngrams import NgramPool
from lade.memory.recycle import Context, Entry, PredictionTable

DEPTHS = 3  # buckets of node depths: children of the root, of nodes at depth 1-2, of deeper ones

Share = tuple[int, int, Sequence[int], Sequence[float]]  # stage, bucket, tokens, their probabilities, likeliest first
Part = Any  # what a source has in a place


def depth_bucket(depth: int) -> int:
    """Which of the `DEPTHS` buckets the children of a node at this depth belong to."""
    return 0 if depth == 0 else 1 if depth < 3 else 2


@dataclass(frozen=True, slots=True)
class Stage:
    """One component of the mixture.

    Attributes:
        name: in the statistics and in saved pools.
        priors: weight per bucket before any observation, between 0 and 1: `DEPTHS` equal groups, one per depth bucket.
    """

    name: str
    priors: tuple[float, ...]


class Warm(Protocol):
    """The model's predictions from before any text (`lade.memory.backoff.Backoff`)."""

    def entry(self, context: Context) -> tuple[int, list[int], list[float]]:
        """The length of the longest known suffix of the context, likely next tokens, their probabilities."""
        ...


@dataclass(slots=True)
class Start:
    """What sources may read when a request starts.

    Attributes:
        settings: of the call.
        tokens: the text so far, prompt first.
        prompt_length: how many of them are the prompt.
        table: the pool's recycled predictions.
        reference: a text that the output may repeat.
        ngrams: of the Jacobi window, where one runs.
        warm: the model's predictions from before any text.
    """

    settings: Settings
    tokens: Sequence[int]
    prompt_length: int
    table: PredictionTable
    reference: Sequence[int] | None = None
    ngrams: NgramPool | None = None
    warm: Warm | None = None
    _counts: FollowerCounts | None = field(default=None, init=False)

    @property
    def counts(self) -> FollowerCounts:
        """Of the tokens: one object for all sources that read them."""
        if self._counts is None:
            self._counts = FollowerCounts(self.tokens)
        return self._counts


class Source:
    """One source of drafts for one request.

    A place in a tree consists of the context, which is the last tokens of a path, and of one part per source that
    tracks: where a text matches that path, for example. Sources that do not track read the context.

    Args:
        first: index of its first stage among all stages.

    Attributes:
        setting: its name in `LookaheadConfig.sources`.
        stages: its components, most specific first.
        tracks: whether it has a part of its own in a place.
        learns: whether `learn` is to be called.
    """

    setting: ClassVar[str]
    stages: ClassVar[tuple[Stage, ...]]
    tracks: ClassVar[bool] = False
    learns: ClassVar[bool] = False

    def __init__(self, first: int) -> None:
        self.first = first

    @classmethod
    def open(cls, start: Start, first: int) -> Source | None:
        """The source of a request that starts; `None` where it has nothing to predict from."""
        return cls(first)

    @property
    def repeats(self) -> bool:
        """Whether it knows that the end of the text occurred earlier in the text."""
        return False

    @property
    def suffices(self) -> bool:
        """Whether a window beside it, when the request starts, would find hardly anything new."""
        return False

    def expect(self, part: Part, depth: int) -> Iterable[Share]:
        """What may come next at a place, most specific stage first.

        Args:
            part: its part of the place, never `None`; the context where it does not track.
            depth: bucket of the node's depth.
        """
        raise NotImplementedError

    def begin(self) -> Part | None:
        """Its part of the place at the end of the text; `None`: it predicts nothing there. Called where it tracks."""
        raise NotImplementedError

    def follow(self, part: Part, token: int) -> Part | None:
        """Its part of the place one token further; `None`: it predicts nothing on that path. Called where it tracks."""
        raise NotImplementedError

    def extend(self, tokens: Sequence[int]) -> None:
        """The text grew by these tokens; parts from before are invalid."""

    def learn(self, predictions: Sequence[tuple[Context, Entry]]) -> None:
        """The model's predictions of one step by context, the accepted path last. Called where it learns."""


def by_depth(*priors: float) -> tuple[float, ...]:
    """The same priors for every depth bucket."""
    return priors * DEPTHS
