"""Medians of paired measurements, shares of sums, and their bootstrap intervals. Knows numbers only."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

RESAMPLES = 2000
ENOUGH = 6  # units: of fewer, all lie on one side of their true median by chance more than once in twenty


@dataclass(frozen=True)
class Estimate:
    """A median (or what else stands for the whole) and its 95% interval, which fewer than ENOUGH units do not give.

    Attributes:
        n: units that are resampled, such as prompts.
    """

    median: float
    low: float | None
    high: float | None
    n: int

    def above(self, value: float) -> bool:
        """Surely: the whole interval is."""
        return self.low is not None and self.low > value

    def below(self, value: float) -> bool:
        """Surely: the whole interval is."""
        return self.high is not None and self.high < value


def pooled_median(groups: Sequence[Sequence[float]], seed: int = 0) -> Estimate:
    """The median of all values; the interval resamples whole groups (prompts)."""
    found = median(value for group in groups for value in group)
    if len(groups) < ENOUGH:
        return Estimate(found, None, None, len(groups))
    generator = random.Random(seed)
    medians = sorted(
        median(value for unit in generator.choices(groups, k=len(groups)) for value in unit) for _ in range(RESAMPLES)
    )
    return Estimate(found, medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1], len(groups))


def pooled_ratio(groups: Sequence[tuple[float, float]], seed: int = 0) -> Estimate:
    """The sum of the parts over the sum of the wholes; its interval resamples the groups, (part, whole) each.

    Groups without a whole are no units, and a resample of them alone is left out. ValueError where none has one.
    """
    units = sum(whole > 0 for _, whole in groups)
    if not units:
        raise ValueError("groups: at least one whole above 0 is needed")
    value = sum(part for part, _ in groups) / sum(whole for _, whole in groups)
    if units < ENOUGH:
        return Estimate(value, None, None, units)
    generator = random.Random(seed)
    found = []
    for _ in range(RESAMPLES):
        parts, wholes = zip(*generator.choices(groups, k=len(groups)), strict=True)
        found += [sum(parts) / sum(wholes)] if sum(wholes) else []
    found.sort()
    return Estimate(value, found[int(0.025 * len(found))], found[max(0, int(0.975 * len(found)) - 1)], units)
