"""The sources of the scored tree: one class each, and the registry that says their order.

Sources give shares of the next token's probability in this order, the most specific first (`lade.memory.calibration`).
Priors were chosen on the first 16 story prompts with stories3M, those of the warm table on twenty of the 48, those of
counts on replays of SmolLM2-135M-Instruct's texts (`benchmarks/replay.py`) and on story prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import ClassVar

from lade.config.settings import FAMILIES
from lade.memory.calibration import Calibration
from lade.memory.counts import FollowerCounts
from lade.memory.ngrams import NgramPool
from lade.memory.recent import RecentPredictions
from lade.memory.recycle import LENGTHS, TOP, Context, Entry, PredictionTable
from lade.memory.source import Share, Source, Stage, Start, by_depth
from lade.memory.suffix import MATCHING, OwnText, ReferenceText
from lade.memory.warmsource import FromWarmTable

GRAMS = 3  # buckets of n-grams: matched by one token, two, more
MATCHES = 6  # buckets of matches: of 1, 2-3, 4-7, 8-15, 16-31, 32 and more tokens
LONG = 1 << (MATCHES - 1)  # the length at which the last of them begins
INDICES = range(len(LENGTHS))
CERTAIN = (1.0,)
RANKED = tuple(0.5 ** (rank + 1) for rank in range(TOP))  # probabilities of n-grams, the most recently seen first

Match = tuple[int, int]  # index in a text where a match goes on, its length in tokens


def match_bucket(depth: int, length: int) -> int:
    """Bucket of a match: `MATCHES` per depth bucket."""
    return depth * MATCHES + (length.bit_length() if length < LONG else MATCHES) - 1


def gram_bucket(depth: int, length: int) -> int:
    """Bucket of an n-gram by how many tokens it matched: `GRAMS` per depth bucket."""
    return depth * GRAMS + min(length, GRAMS) - 1


class FromReference(Source):
    """The reference text, read on from where the output matches it."""

    setting = "reference"
    stages = (Stage("reference", by_depth(0.02, 0.06, 0.3, 0.8, 0.95, 0.99)),)
    tracks = True

    def __init__(self, first: int, text: ReferenceText) -> None:
        super().__init__(first)
        self.text, self._at = text, text.at

    @classmethod
    def open(cls, start: Start, first: int) -> FromReference | None:
        if not start.reference:
            return None
        text = ReferenceText(start.reference)
        text.extend(start.tokens[start.prompt_length :])
        return cls(first, text)

    def begin(self) -> Match | None:
        cursor = self.text.cursor
        return (cursor.end, cursor.length + self.text.begun) if cursor.end >= 0 else None

    def follow(self, part: Match, token: int) -> Match | None:
        end, length = part
        return (end + 1, length + 1) if self._at(end) == token else None

    def expect(self, part: Match, depth: int) -> Iterable[Share]:
        token = self._at(part[0])
        return () if token is None else ((self.first, match_bucket(depth, part[1]), (token,), CERTAIN),)

    def extend(self, tokens: Sequence[int]) -> None:
        self.text.extend(tokens)


class FromOwnText(Source):
    """The request's own text: what followed the earlier occurrence of its longest repeated suffix."""

    setting = "suffix"
    stages = (Stage("suffix", by_depth(0.02, 0.05, 0.1, 0.2, 0.4, 0.6)),)
    tracks = True

    def __init__(self, first: int, text: OwnText) -> None:
        super().__init__(first)
        self.text, self._at = text, text.at

    @classmethod
    def open(cls, start: Start, first: int) -> FromOwnText:
        return cls(first, OwnText(start.tokens))

    @property
    def repeats(self) -> bool:
        return self.text.cursor.length > 0

    def begin(self) -> Match | None:
        cursor = self.text.cursor
        return (cursor.end, cursor.length) if cursor.length >= MATCHING.shortest else None

    def follow(self, part: Match, token: int) -> Match | None:
        end, length = part
        return (end + 1, length + 1) if self._at(end) == token else None

    def expect(self, part: Match, depth: int) -> Iterable[Share]:
        return ((self.first, match_bucket(depth, part[1]), (self._at(part[0]),), CERTAIN),)

    def extend(self, tokens: Sequence[int]) -> None:
        self.text.extend(tokens)


class FromWindow(Source):
    """n-grams that the Jacobi window found."""

    setting = "window"
    stages = (Stage("window", by_depth(0.1, 0.2, 0.3)),)

    def __init__(self, first: int, ngrams: NgramPool) -> None:
        super().__init__(first)
        self.ngrams = ngrams

    @classmethod
    def open(cls, start: Start, first: int) -> FromWindow | None:
        return None if start.ngrams is None else cls(first, start.ngrams)

    def expect(self, part: Context, depth: int) -> Iterable[Share]:
        tokens, length = self.ngrams.following(part)
        return ((self.first, gram_bucket(depth, length), tokens[:TOP], RANKED),) if tokens else ()


class FromCounts(Source):
    """What followed the last tokens earlier in the request's own text, by the longest context that occurred.

    Attributes:
        lengths: of the contexts, longest first.
    """

    setting = "counts"
    lengths: ClassVar[tuple[int, ...]] = LENGTHS[:-1]
    stages = (Stage("counts", by_depth(0.15, 0.2, 0.3)),)

    def __init__(self, first: int, counts: FollowerCounts) -> None:
        super().__init__(first)
        self.counts = counts

    @classmethod
    def open(cls, start: Start, first: int) -> FromCounts:
        return cls(first, start.counts)

    def expect(self, part: Context, depth: int) -> Iterable[Share]:
        length, (tokens, probabilities) = self.counts.entry(part, self.lengths)
        bucket = depth * len(self.lengths) + length - self.lengths[-1]
        return ((self.first, bucket, tokens, probabilities),) if tokens else ()

    def extend(self, tokens: Sequence[int]) -> None:
        self.counts.extend(tokens)


class FromShortCounts(FromCounts):
    """The same by the last token alone, which tells less than the model's own predictions."""

    lengths = LENGTHS[-1:]
    stages = (Stage("counts-1", by_depth(0.1)),)

    def extend(self, tokens: Sequence[int]) -> None:
        """Nothing: `FromCounts`, which a request has beside it, extends the counts of both."""


class FromPredictions(Source):
    """Recycled predictions of the model, one stage per length of context."""

    setting = "recycled"
    stages = tuple(
        Stage(f"recycled-{length}", by_depth(prior))
        for length, prior in zip(LENGTHS, (0.6, 0.6, 0.6, 0.8), strict=True)
    )
    learns = True

    def __init__(self, first: int, table: PredictionTable) -> None:
        super().__init__(first)
        self.table = table

    @classmethod
    def open(cls, start: Start, first: int) -> FromPredictions:
        return cls(first, start.table)

    def expect(self, part: Context, depth: int) -> Iterator[Share]:
        first, young, old = self.first, self.table.young, self.table.old
        key: tuple[int, ...] = part
        for index in INDICES:  # `zip` would take longer than the look-ups
            entry = young[index].get(key) or old[index].get(key)
            if entry is not None:
                yield first + index, depth, entry[0], entry[1]
            key = key[1:]

    def learn(self, predictions: Sequence[tuple[Context, Entry]]) -> None:
        learn = self.table.learn
        for context, entry in predictions:
            learn(context, entry)
        self.table.forget()


class FromRecent(Source):
    """What the model thought likely in recent steps, whatever the context."""

    setting = "recent"
    stages = (Stage("recent", by_depth(0.5)),)
    learns = True

    def __init__(self, first: int) -> None:
        super().__init__(first)
        self.predictions = RecentPredictions()

    def expect(self, part: Context, depth: int) -> Iterable[Share]:
        tokens, probabilities = self.predictions.likeliest
        return ((self.first, depth, tokens, probabilities),) if tokens else ()

    def learn(self, predictions: Sequence[tuple[Context, Entry]]) -> None:
        self.predictions.learn([entry for _, entry in predictions])


SOURCES: tuple[type[Source], ...] = (
    FromReference,
    FromOwnText,
    FromWindow,
    FromCounts,
    FromPredictions,
    FromWarmTable,
    FromShortCounts,
    FromRecent,
)


def stages() -> tuple[Stage, ...]:
    """All stages, in the order of their indices."""
    return tuple(stage for source in SOURCES for stage in source.stages)


def prior_calibration() -> Calibration:
    """Weights before any observation."""
    return Calibration([stage.priors for stage in stages()])


def opened(start: Start) -> list[Source]:
    """The sources of a request that starts: those that its settings allow and that have something to predict from.

    All names of the setting, which is its default, allow every source, one that has no name there too.
    """
    firsts = accumulate((len(source.stages) for source in SOURCES), initial=0)
    allowed = set(start.settings.sources)
    every = allowed.issuperset(FAMILIES)
    rows = zip(SOURCES, firsts, strict=False)
    found = [source.open(start, first) for source, first in rows if every or source.setting in allowed]
    return [source for source in found if source is not None]
