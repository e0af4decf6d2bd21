"""How many ranks share a step, by what steps took: few where the exchange of shares costs more than it saves.

Rank 0 measures and sends its times with every exchange, so that all ranks decide alike. Knows numbers and a clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lade.pace.pace import Moments

SMOOTHING = 0.8  # weight of the past in the mean time of a way
FIRST = 3  # steps in which each number of ranks is tried
AGAIN = 64  # steps after which one is tried again
OUTLIER = 4.0  # times the mean: another process ran


@dataclass(slots=True)
class _Kind:
    """Steps of about the same number of tokens and rows: mean seconds and count by the ranks that shared them."""

    seconds: dict[int, float] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    steps: int = 0

    def observe(self, ranks: int, seconds: float) -> None:
        count = self.counts.get(ranks, 0)
        self.counts[ranks] = count + 1
        if count < FIRST:  # the first are slow: the least counts
            self.seconds[ranks] = min(seconds, self.seconds.get(ranks, seconds))
        else:
            mean = self.seconds[ranks]
            self.seconds[ranks] = SMOOTHING * mean + (1 - SMOOTHING) * min(seconds, OUTLIER * mean)

    def choose(self, ways: Sequence[int]) -> int:
        """The fastest; at times one that has not been tried for long."""
        self.steps += 1
        untried = next((ranks for ranks in ways if self.counts.get(ranks, 0) < FIRST), None)
        if untried is not None:
            return untried
        if self.steps % AGAIN == 0:
            return ways[self.steps // AGAIN % len(ways)]
        return min(ways, key=self.seconds.__getitem__)


class StepTimes(Moments):
    """The steps of a group.

    Args:
        ranks: of the group.
        adapts: whether fewer ranks may share a step; otherwise all share every step.

    Attributes:
        virtual: seconds of all steps on rank 0, as all ranks know them.
        overhead: seconds of drafting and learning in the last step.
    """

    def __init__(self, ranks: int, adapts: bool, now: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(now)
        self._ways = _ways(ranks) if adapts else (ranks,)
        self._kinds: dict[tuple[int, int], _Kind] = {}
        self._step: tuple[_Kind, int] | None = None
        self.virtual = self.overhead = 0.0
        self._sent: float | None = None  # when the last exchange began
        self._drafted: float | None = None
        self._verified: float | None = None

    def begin(self, tokens: int, rows: int) -> int:
        """A forward of so many tokens begins. Returns the ranks that share it."""
        if tokens == rows:
            self._step = None
            return 1
        kind = self._kinds.setdefault((tokens.bit_length(), rows), _Kind())
        ranks = kind.choose(self._ways)
        self._step = kind, ranks
        return ranks

    def times(self) -> list[float]:
        """Seconds since the last exchange, and those of drafting and learning in it."""
        now, sent = self._now(), self._sent
        self._sent = now
        drafted, verified = self._drafted, self._verified
        overhead = 0.0 if drafted is None or verified is None else drafted - verified
        return [0.0 if sent is None else now - sent, max(0.0, overhead)]

    def take(self, times: Sequence[float]) -> None:
        seconds, self.overhead = times[0], times[1]
        self.virtual += seconds
        if self._step is not None and seconds > 0:
            kind, ranks = self._step
            kind.observe(ranks, max(0.0, seconds - self.overhead))
        self._step = None

    def begun(self) -> float:
        return self.virtual

    def drafted(self) -> float:
        self._drafted = self._now()
        return self.virtual

    def verified(self) -> float:
        self._verified = self._now()
        return self.virtual - self.overhead


def _ways(ranks: int) -> tuple[int, ...]:
    """Numbers of ranks that may share a step: 1, 2, 4, ... and all."""
    return (*(1 << power for power in range(ranks.bit_length()) if 1 << power < ranks), ranks)
