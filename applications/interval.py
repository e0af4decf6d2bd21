"""Medians of paired measurements, ratios of sums and of rates, and their bootstrap intervals. Knows numbers only."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from lade.base.shown import invalid

RESAMPLES = 2000
ENOUGH = 6  # units: the chance that all of n lie on one side of their median, 2**(1 - n), is below 5 % from 6 on

Rate = tuple[float, float]  # an amount and a count


@dataclass(frozen=True)
class Estimate:
    """A median or a ratio, and its 95% bootstrap interval.

    Attributes:
        low, high: limits of the interval; `None` for fewer than ENOUGH units.
        n: units that are resampled, such as prompts.
    """

    median: float
    low: float | None
    high: float | None
    n: int

    def above(self, value: float) -> bool:
        """Whether the whole interval is."""
        return self.low is not None and self.low > value

    def below(self, value: float) -> bool:
        """Whether the whole interval is."""
        return self.high is not None and self.high < value


def pooled_median(groups: Sequence[Sequence[float]], seed: int = 0) -> Estimate:
    """The median of all values. The interval resamples whole groups (prompts): a cluster bootstrap."""
    found = median(value for group in groups for value in group)
    if len(groups) < ENOUGH:
        return Estimate(found, None, None, len(groups))
    generator = random.Random(seed)
    medians = sorted(
        median(value for unit in generator.choices(groups, k=len(groups)) for value in unit) for _ in range(RESAMPLES)
    )
    return Estimate(found, medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1], len(groups))


def pooled_ratio(groups: Sequence[tuple[float, float]], seed: int = 0) -> Estimate:
    """The sum of the parts over the sum of the wholes; the interval resamples the groups.

    Args:
        groups: (part, whole) each. Those with a whole of 0 do not count as units, and resamples of them alone are
            left out.

    Raises:
        ValueError: no whole is above 0.
    """
    units = sum(whole > 0 for _, whole in groups)
    if not units:
        raise invalid("groups", "pairs of which at least one has a whole above 0", groups)
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


def pooled_rate_ratio(groups: Sequence[tuple[Rate, Rate]], seed: int = 0) -> Estimate:
    """The pooled rate of one system over that of another, such as tokens per step; the interval resamples the groups.

    Args:
        groups: for one unit each, the amount and the count of one system, and those of the other; all above 0.

    Raises:
        ValueError: there are none, or a number is not above 0.
    """
    if not groups or not all(number > 0 for group in groups for rate in group for number in rate):
        raise invalid("groups", "pairs of an amount and a count above 0", groups)
    if len(groups) < ENOUGH:
        return Estimate(_rate_ratio(groups), None, None, len(groups))
    generator = random.Random(seed)
    found = sorted(_rate_ratio(generator.choices(groups, k=len(groups))) for _ in range(RESAMPLES))
    return Estimate(_rate_ratio(groups), found[int(0.025 * RESAMPLES)], found[int(0.975 * RESAMPLES) - 1], len(groups))


def _rate_ratio(groups: Sequence[tuple[Rate, Rate]]) -> float:
    one, other = (tuple(map(sum, zip(*rates, strict=True))) for rates in zip(*groups, strict=True))
    return float(one[0] / one[1] / (other[0] / other[1]))
