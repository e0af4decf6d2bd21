"""The mixture of a draft tree's sources, computed in the slowest and plainest way."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from drafting import Entry, learned, remembered, warm_of
from occurrences import longest_repeated

from lade import LookaheadConfig
from lade.memory import automaton, matches, reference
from lade.memory.backoff import Backoff
from lade.memory.context import CONTEXT, LENGTHS, NOTHING
from lade.memory.coverage import COVERAGE
from lade.memory.pools import Pool, fresh_pool
from lade.memory.row import MATCH, OWN, REFERENCE
from lade.memory.rowmemory import RowMemory
from lade.memory.stages import FIRSTS, NAMES

Expected = dict[int, float]
STAGE = {name: stage for stage, name in enumerate(NAMES)}


@dataclass(frozen=True)
class Table:
    """Expects the same after every token that it knows, or after all; odd tokens are seen contexts."""

    tokens: tuple[int, ...]
    probabilities: tuple[float, ...]  # of few bits, so that the array's are equal
    known: tuple[int, ...] = tuple(range(10))

    def arrays(self) -> Backoff:
        entry = self.tokens, self.probabilities
        alone = [entry if token in self.known and token % 2 == 0 else None for token in range(10)]
        return warm_of(alone, {(token,): entry for token in self.known if token % 2})

    def entry(self, token: int) -> tuple[int, Entry]:
        """The length of the known context, and what follows."""
        return token % 2, (self.tokens, self.probabilities) if token in self.known else ((), ())


def context_of(tokens: Sequence[int]) -> tuple[int, ...]:
    return (*[NOTHING] * CONTEXT, *tokens)[-CONTEXT:]


def bucket_of(stage: str, depth: int, bucket: int = 0) -> int:
    """Of all weights, three groups per stage by the depth of the node."""
    first, end = FIRSTS[STAGE[stage] : STAGE[stage] + 2]
    return first + (0 if depth == 0 else 1 if depth < 3 else 2) * (end - first) // 3 + bucket


def match_bucket(length: int) -> int:
    """1, 2-3, 4-7, 8-15, 16-31 or more tokens."""
    return min(length.bit_length(), 6) - 1


def continuations(
    text: Sequence[int], prompt: int, of_reference: list[int] | None
) -> Iterator[tuple[str, list[int], int]]:
    """Stage, what goes on behind a match in the reference, and the length of the match."""
    memory = RowMemory(LookaheadConfig().settled(), text, prompt, fresh_pool(), output=of_reference)
    ints, output = memory.row().ints.tolist(), list(text[prompt:])
    if of_reference is not None and ints[REFERENCE + reference.NEXT] >= 0:
        end, length = ints[REFERENCE + reference.NEXT], ints[REFERENCE + reference.MATCHED]
        assert of_reference[max(0, end - length) : end] == output[len(output) - min(length, end) :]
        yield "reference", of_reference[end:], length + ints[REFERENCE + reference.BEGUN]


class OwnText:
    """Matches in the own text: of its end, which one is taken is the automaton's to say (`tests/memory`), then on."""

    def __init__(self, text: list[int], prompt: int) -> None:
        self._text = text
        self._ints = RowMemory(LookaheadConfig().settled(), text, prompt, fresh_pool()).row().ints.tolist()
        self._match = tuple(self._ints[MATCH : MATCH + matches.FIELDS])
        self._longest = longest_repeated(text)
        end, length, before = self._match
        assert end < 0 or text[end - length : end] == text[len(text) - length :]
        assert before or ((end >= 0) == (self._longest >= 2) and (end < 0 or length == self._longest))

    def after(self, path: Sequence[int]) -> tuple[str, int, int] | None:
        """Stage, bucket, and the token that follows."""
        end, length, before = self._match
        last = self._text[-1]
        for token in path:
            goes_on = self._at(end) == token
            if self._at(end) is None or not (goes_on or length >= 2):
                end, length, before = -1, 0, 0
            else:
                end, length, before = end + 1, (length + 1) * goes_on, before if goes_on else max(length, before)
            if length < 2 and any(pair == (last, token) for pair in pairwise(self._text)):
                end, length, before = self._pair(last, token), 2, 0
            last = token
        if self._at(end) is None:
            return None
        if before == 0:
            return "suffix", match_bucket(length), self._at(end)
        return "mismatch", 2 + min(match_bucket(length), 3) if length else int(before >= 8), self._at(end)

    def _at(self, index: int) -> int | None:
        size = len(self._text)
        if index < 0 or (index >= size and self._longest == 0):
            return None
        return automaton.at(self._ints, OWN, index)

    def _pair(self, first: int, second: int) -> int:
        ints = [*self._ints, 0, 0, 0]
        matches.find_pair(ints, OWN, first, second, len(self._ints))
        end = ints[len(self._ints)]
        assert self._text[end - 2 : end] == [first, second]
        return end


def coverage(text: Sequence[int], begun: int, warm: Table) -> float:
    """The share of a table's probabilities that counts.

    Args:
        begun: tokens that the request began with, its first output too.
    """
    found = claimed = COVERAGE.prior
    for place in range(1, len(text)):
        weight, (_, (tokens, probabilities)) = 0.5 if place < begun else 1.0, warm.entry(text[place - 1])
        found += weight * (text[place] in tokens)
        claimed += weight * sum(probabilities)
    share = min(1.0, found / claimed / COVERAGE.enough) ** 2
    return share if share >= COVERAGE.least else 0.0


def weighted(entries: Sequence[tuple[float, Entry]]) -> Expected:
    """The mean of predictions with weights."""
    mean, total = Expected(), sum(weight for weight, _ in entries)
    for weight, entry in entries:
        for token, probability in zip(*entry, strict=True):
            mean[token] = mean.get(token, 0.0) + weight * probability / total
    return mean


class Naive:
    """What may follow a path, from the parts: matches gone on with as a whole, and weights multiplied out."""

    def __init__(
        self,
        pool: Pool,
        text: Sequence[int],
        begun: int,
        warm: Table | None,
        of_reference: list[int] | None,
        number: int,
        siblings: Expected | None = None,
    ) -> None:
        self.text, self.warm, self.weights = list(text), warm, pool.calibration.numbers.tolist()
        self.matches = [*continuations(self.text, begun - 1, of_reference)]
        self.own = OwnText(self.text, begun - 1)
        self.predictions = {length: remembered(pool, length) for length in LENGTHS}
        self.kept = {key for length in LENGTHS for key, last in learned(pool, length).items() if last < number}
        self.siblings = siblings or {}
        self.share = 0.0 if warm is None else coverage(text, begun, warm)

    def said(self, path: Sequence[int]) -> Iterator[tuple[int, Sequence[int], Sequence[float]]]:
        """Per stage: place of its weight, tokens, their probabilities."""
        depth, context = len(path), context_of([*self.text, *path])
        for stage, following, length in self.matches:
            if following[:depth] == list(path) and len(following) > depth:
                yield bucket_of(stage, depth, match_bucket(length + depth)), [following[depth]], [1.0]
        own = self.own.after(path)
        if own is not None:
            stage, bucket, token = own
            yield bucket_of(stage, depth, bucket), [token], [1.0]
        known = [length for length in LENGTHS if context[-length:] in self.predictions[length]]
        kept = [length for length in known if context[-length:] in self.kept]
        for length in known:
            if length not in kept:
                yield bucket_of(f"recycled-{length}", depth), *self.predictions[length][context[-length:]]
        if kept:
            yield bucket_of("kept", depth, max(kept) - 1), *self.predictions[max(kept)][context[-max(kept) :]]
        if self.warm is not None and self.share:
            length, (tokens, probabilities) = self.warm.entry(context[-1])
            if tokens:
                yield bucket_of("warm", depth, length), tokens, [self.share * each for each in probabilities]
        if depth == 0 and self.siblings:
            yield bucket_of("siblings", depth), [*self.siblings], [*self.siblings.values()]

    def expected(self, path: Sequence[int]) -> Expected:
        mixture, left = Expected(), 1.0
        for bucket, tokens, probabilities in self.said(path):
            for token, probability in zip(tokens, probabilities, strict=True):
                mixture[token] = mixture.get(token, 0.0) + left * self.weights[bucket] * probability
            left *= 1 - self.weights[bucket]
        return mixture

    def every_path(self, deepest: int) -> dict[tuple[int, ...], float]:
        """The probability of every path of at most `deepest` tokens."""
        paths: dict[tuple[int, ...], float] = {(): 1.0}
        level = [()]
        for _ in range(deepest):
            level = [path for parent in level for path in grown(paths, parent, self.expected(parent))]
        return paths


def grown(paths: dict[tuple[int, ...], float], parent: tuple[int, ...], mixture: Expected) -> Iterator[tuple[int, ...]]:
    for token, probability in mixture.items():
        paths[(*parent, token)] = paths[parent] * probability
        yield (*parent, token)
