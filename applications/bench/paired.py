"""Statistics of paired runs: speed ratios to plain decoding and their bootstrap intervals. Knows records only."""

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from lade.applications.bench.methods import PLAIN
from lade.applications.bench.records import Record

RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A median and its 95% interval."""

    median: float
    low: float
    high: float


def speed_ratios(records: Iterable[Record], method: str) -> dict[str | int, list[float]]:
    """Per prompt: tokens per second of `method` over plain decoding's, one ratio for each repeat that has both."""
    speeds: dict[tuple[str | int, int], dict[str, float]] = defaultdict(dict)
    for record in records:
        speeds[record.prompt_id, record.repeat][record.method] = record.tokens_per_second
    ratios: dict[str | int, list[float]] = defaultdict(list)
    for (prompt_id, _), speed in speeds.items():
        if method in speed and PLAIN in speed:
            ratios[prompt_id].append(speed[method] / speed[PLAIN])
    return dict(ratios)


def pooled_median(groups: Sequence[Sequence[float]], seed: int = 0) -> Interval:
    """The median of all values. The interval resamples whole groups (prompts); of a single group, its values."""
    units = groups if len(groups) > 1 else [[value] for value in groups[0]]
    generator = random.Random(seed)
    medians = sorted(
        median(value for unit in generator.choices(units, k=len(units)) for value in unit) for _ in range(RESAMPLES)
    )
    values = [value for group in groups for value in group]
    return Interval(median(values), medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1])
