"""Offline search for the fastest setting: successive halving over speed ratios to plain decoding.

All candidates run on few prompts, the better half on more, and so on. The finalists are measured again on all prompts,
so that measurements which selected a candidate do not bias its result. Knows no model and no clock: `measure` is an
argument.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lade.applications.interval import Estimate, pooled_median
from lade.base.shown import invalid

FINALISTS = 2
FIRST_PROMPTS = 2  # of the first round, or all if there are fewer
SEARCH, FINAL = "search", "final"

MeasurementKey = tuple[str, str, int]  # stage, label, prompt
Measurements = MutableMapping[MeasurementKey, list[float]]


@dataclass(frozen=True, order=True)
class Candidate:
    """A setting to try. `label` is unique; `size` is the most tokens of a forward."""

    size: int
    label: str


Measure = Callable[[Candidate, int], list[float]]
"""Speed ratios to plain decoding on the prompt of this index, from paired runs; the same number at every call."""

Progress = Callable[[int, int], object]
"""Called with the measurements done and their total."""


@dataclass(frozen=True)
class Round:
    """One round of successive halving: how many candidates run on how many prompts."""

    candidates: int
    prompts: int


@dataclass(frozen=True)
class Standing:
    """The result of one candidate in its last round.

    Attributes:
        ratios: measured speed ratios, per prompt.
        speed: their median and its interval.
        final: whether they are the finalists' measurements on all prompts.
    """

    candidate: Candidate
    ratios: list[list[float]]
    speed: Estimate
    final: bool

    @property
    def faster(self) -> bool:
        """Whether the interval lies above plain decoding's speed; never with few prompts."""
        return self.speed.above(1)


@dataclass(frozen=True)
class SearchOutcome:
    """The result of a search: `best` is `None` if no candidate beats plain decoding. Finalists come first, by speed."""

    best: Standing | None
    standings: list[Standing]


def rounds(candidates: int, prompts: int) -> list[Round]:
    """The rounds before the final: each halves the candidates and doubles the prompts, up to all of them."""
    sizes = [candidates]
    while sizes[-1] > FINALISTS:
        sizes.append(halved(sizes[-1]))
    steps = len(sizes) - 1
    least = min(FIRST_PROMPTS, prompts)
    return [Round(sizes[step], max(least, -(-prompts // 2 ** (steps - 1 - step)))) for step in range(steps)]


def halved(candidates: int) -> int:
    return -(-candidates // 2)


def measurements_of(candidates: int, prompts: int) -> int:
    """The number of measurements that `search` makes."""
    before = [Round(candidates, 0), *rounds(candidates, prompts)]
    search = sum(later.candidates * (later.prompts - earlier.prompts) for earlier, later in pairwise(before))
    return search + min(candidates, FINALISTS) * prompts


def search(
    candidates: Sequence[Candidate],
    measure: Measure,
    prompts: int,
    known: Measurements | None = None,
    progress: Progress | None = None,
) -> SearchOutcome:
    """Find the candidate that decodes fastest, or that none is faster than plain decoding.

    Args:
        known: measurements of an interrupted search, which are not made again. New ones are added one by one, so
            they are kept whatever ends this call.

    Raises:
        ValueError: there are no candidates or no prompts.
    """
    if not candidates:
        raise invalid("candidates", "at least one", candidates)
    if prompts < 1:
        raise invalid("prompts", "at least 1", prompts)
    survey = _Survey(measure, {} if known is None else known, progress, measurements_of(len(candidates), prompts))
    alive = sorted(candidates)
    standings: dict[Candidate, Standing] = {}
    for each in rounds(len(candidates), prompts):
        standings |= survey.standings(SEARCH, alive, each.prompts)
        alive = sorted(alive, key=lambda candidate: _rank(standings[candidate]))[: halved(len(alive))]
    finalists = survey.standings(FINAL, alive, prompts)
    standings |= finalists
    return SearchOutcome(choose(list(finalists.values())), sorted(standings.values(), key=_rank))


def choose(standings: Sequence[Standing]) -> Standing | None:
    """The smallest of the candidates that the fastest does not significantly beat; `None` if none beats plain decoding.

    All must have been measured on the same prompts.
    """
    faster = sorted((standing for standing in standings if standing.faster), key=_rank)
    if not faster:
        return None
    best = faster[0]
    tied = [standing for standing in faster if standing is best or not _beats(best, standing)]
    return min(tied, key=lambda standing: standing.candidate)


def _rank(standing: Standing) -> tuple[bool, float, Candidate]:
    return not standing.final, -standing.speed.median, standing.candidate


def _beats(one: Standing, other: Standing) -> bool:
    """Whether one is faster, paired by prompt, which cancels the differences between prompts."""
    paired = zip(one.ratios, other.ratios, strict=True)
    return pooled_median([[a / b for a, b in zip(*pair, strict=True)] for pair in paired]).above(1)


class _Survey:
    """Makes the measurements that are not known yet, and counts them."""

    def __init__(self, measure: Measure, known: Measurements, progress: Progress | None, total: int) -> None:
        self._measure, self._known, self._progress = measure, known, progress
        self._done, self._total = set[MeasurementKey](), total

    def standings(self, stage: str, candidates: Sequence[Candidate], prompts: int) -> dict[Candidate, Standing]:
        """All candidates on one prompt before the next prompt, so that an interrupt leaves equal numbers."""
        for prompt in range(prompts):
            for candidate in candidates:
                self._cover(stage, candidate, prompt)
        return {candidate: self._standing(stage, candidate, prompts) for candidate in candidates}

    def _cover(self, stage: str, candidate: Candidate, prompt: int) -> None:
        key = (stage, candidate.label, prompt)
        if key not in self._known:
            self._known[key] = self._measure(candidate, prompt)
        self._done.add(key)
        if self._progress is not None:
            self._progress(len(self._done), self._total)

    def _standing(self, stage: str, candidate: Candidate, prompts: int) -> Standing:
        ratios = [self._known[stage, candidate.label, prompt] for prompt in range(prompts)]
        return Standing(candidate, ratios, pooled_median(ratios), stage == FINAL)
