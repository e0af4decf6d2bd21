"""Offline search for the fastest setting: successive halving over measured ratios of its speed to plain decoding's.

Many candidates meet few prompts, the better half of them more. The last ones are measured anew on all prompts, so that
no run which selected a candidate speaks for it. Knows no model and no clock: `measure` is given to it.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lade.applications.interval import Estimate, pooled_median

FINALISTS = 2
FIRST_PROMPTS = 2  # of the first round, where there are as many
SEARCH, FINAL = "search", "final"

Key = tuple[str, str, int]  # stage, label, prompt
Measurements = MutableMapping[Key, list[float]]


@dataclass(frozen=True, order=True)
class Candidate:
    """A setting to try; `label` tells it apart, `size` is the most tokens that its forwards carry."""

    size: int
    label: str


Measure = Callable[[Candidate, int], list[float]]
"""Speed ratios to plain decoding, from pairs of runs in turn on the prompt of this number; as many at every call."""

Progress = Callable[[int, int], object]
"""Told how many of how many measurements are done."""


@dataclass(frozen=True)
class Round:
    """So many candidates are compared on so many prompts."""

    candidates: int
    prompts: int


@dataclass(frozen=True)
class Standing:
    """How one candidate did, in the last stage that it saw.

    Attributes:
        ratios: its measurements, per prompt.
        speed: their median and its interval.
        final: they come from the last stage, on all prompts.
    """

    candidate: Candidate
    ratios: list[list[float]]
    speed: Estimate
    final: bool

    @property
    def faster(self) -> bool:
        """Surely, than plain decoding; few prompts never tell."""
        return self.speed.above(1)


@dataclass(frozen=True)
class Outcome:
    """What the search found: `best` is `None` where plain decoding stays. Finalists stand first, the faster first."""

    best: Standing | None
    standings: list[Standing]


def rounds(candidates: int, prompts: int) -> list[Round]:
    """The rounds before the last stage: each halves the candidates and doubles the prompts, up to all of them."""
    sizes = [candidates]
    while sizes[-1] > FINALISTS:
        sizes.append(halved(sizes[-1]))
    steps = len(sizes) - 1
    least = min(FIRST_PROMPTS, prompts)
    return [Round(sizes[step], max(least, -(-prompts // 2 ** (steps - 1 - step)))) for step in range(steps)]


def halved(candidates: int) -> int:
    return -(-candidates // 2)


def measurements_of(candidates: int, prompts: int) -> int:
    """How many measurements `search` takes."""
    before = [Round(candidates, 0), *rounds(candidates, prompts)]
    search = sum(later.candidates * (later.prompts - earlier.prompts) for earlier, later in pairwise(before))
    return search + min(candidates, FINALISTS) * prompts


def search(
    candidates: Sequence[Candidate],
    measure: Measure,
    prompts: int,
    known: Measurements | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Find the candidate that decodes fastest, or that none is faster than plain decoding.

    Args:
        known: measurements of an earlier, interrupted search, which are not taken again; new ones are added one by one,
            so whatever ends this call leaves them there.

    Raises:
        ValueError: there are no candidates or no prompts.
    """
    if not candidates or prompts < 1:
        raise ValueError(f"{len(candidates)} candidates on {prompts} prompts: at least one of each is needed")
    survey = _Survey(measure, {} if known is None else known, progress, measurements_of(len(candidates), prompts))
    alive = sorted(candidates)
    standings: dict[Candidate, Standing] = {}
    for each in rounds(len(candidates), prompts):
        standings |= survey.standings(SEARCH, alive, each.prompts)
        alive = sorted(alive, key=lambda candidate: _rank(standings[candidate]))[: halved(len(alive))]
    finalists = survey.standings(FINAL, alive, prompts)
    standings |= finalists
    return Outcome(choose(list(finalists.values())), sorted(standings.values(), key=_rank))


def choose(standings: Sequence[Standing]) -> Standing | None:
    """The fastest, or the smallest of those that it does not surely beat; `None` where none surely beats plain.

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
    """By the quotients of ratios from the same prompts, which the prompts' own differences leave alone."""
    paired = zip(one.ratios, other.ratios, strict=True)
    return pooled_median([[a / b for a, b in zip(*pair, strict=True)] for pair in paired]).above(1)


class _Survey:
    """Measures what is not known yet, and counts."""

    def __init__(self, measure: Measure, known: Measurements, progress: Progress | None, total: int) -> None:
        self._measure, self._known, self._progress = measure, known, progress
        self._done, self._total = set[Key](), total

    def standings(self, stage: str, candidates: Sequence[Candidate], prompts: int) -> dict[Candidate, Standing]:
        """All candidates on one prompt before the next prompt, so that an interrupt leaves them level."""
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
