"""How many ranks share a step, by what steps took: few where the exchange of shares costs more than it saves.

Where several do, keys and values that a rank lacks are sent or computed again, whichever makes steps faster. Rank 0
measures and sends its times with every exchange, so that all ranks decide alike. Knows numbers and a clock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Generic, NamedTuple, TypeVar

from lade.pace.pace import Moments

LAST = 5  # steps whose median counts
FIRST = 3  # steps in which each option is tried
AGAIN = 64  # steps after which one is tried again

Option = TypeVar("Option")


class Way(NamedTuple):
    """How a step is shared.

    Attributes:
        ranks: that share it.
        sends: whether keys and values that one of them lacks are sent, and not computed again.
    """

    ranks: int
    sends: bool = False


@dataclass(slots=True)
class Tried(Generic[Option]):
    """The last seconds of steps by what was chosen for them; their median counts, since other processes run, too."""

    seconds: dict[Option, deque[float]] = field(default_factory=dict)
    choices: int = 0

    def observe(self, option: Option, seconds: float) -> None:
        own = self.seconds.setdefault(option, deque(maxlen=LAST))
        others = [median(other) for each, other in self.seconds.items() if each != option]
        if len(own) >= FIRST and others and seconds < min(others) < median(own):
            own.clear()  # it has become the fastest, perhaps: it is tried anew
        own.append(seconds)

    def choose(self, options: Sequence[Option]) -> Option:
        """The fastest; at times one that has not been tried for long."""
        self.choices += 1
        untried = next((option for option in options if len(self.seconds.get(option, ())) < FIRST), None)
        if untried is not None:
            return untried
        best = min(options, key=lambda option: median(self.seconds[option]))
        others = [option for option in options if option != best]
        if others and self.choices % AGAIN == 0:
            return others[self.choices // AGAIN % len(others)]
        return best


@dataclass(slots=True)
class Kind:
    """Steps of about the same number of tokens and rows."""

    ranks: Tried[int] = field(default_factory=Tried)
    ways: Tried[Way] = field(default_factory=Tried)  # where a rank lacks keys and values

    def observe(self, way: Way, lacked: bool, seconds: float) -> None:
        self.ranks.observe(way.ranks, seconds)
        if lacked:
            self.ways.observe(way, seconds)


Kinds = dict[tuple[int, int], Kind]  # by bits of the number of tokens, and rows


class StepTimes(Moments):
    """The steps of a group.

    Args:
        ranks: of the group.
        adapts: whether fewer ranks may share a step; otherwise all share every step, and nothing is sent.
        kinds: what earlier calls on the same model have learned; changed.

    Attributes:
        virtual: seconds of all steps on rank 0, as all ranks know them.
        overhead: seconds of drafting and learning in the last step.
    """

    def __init__(
        self, ranks: int, adapts: bool, kinds: Kinds | None = None, now: Callable[[], float] = time.perf_counter
    ) -> None:
        super().__init__(now)
        self._numbers, self._adapts = _numbers(ranks) if adapts else (ranks,), adapts
        self._kinds = {} if kinds is None else kinds
        self._step: tuple[Kind, Way, bool] | None = None
        self.virtual = self.overhead = 0.0
        self._sent: float | None = None  # when the last exchange began
        self._drafted: float | None = None
        self._verified: float | None = None

    def begin(self, tokens: int, rows: int, lacks: Callable[[int], bool]) -> Way:
        """A forward of so many tokens begins.

        Args:
            lacks: whether one of so many ranks lacks keys and values that another one has.
        """
        if tokens == rows:
            self._step = None
            return Way(1)
        kind = self._kinds.setdefault((tokens.bit_length(), rows), Kind())
        way = Way(kind.ranks.choose(self._numbers))
        lacked = way.ranks > 1 and lacks(way.ranks)
        if lacked and self._adapts:
            way = kind.ways.choose([way, Way(way.ranks, sends=True)])
        self._step = kind, way, lacked
        return way

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
            kind, way, lacked = self._step
            kind.observe(way, lacked, max(0.0, seconds - self.overhead))
        self._step = None

    def begun(self) -> float:
        return self.virtual

    def drafted(self) -> float:
        self._drafted = self._now()
        return self.virtual

    def verified(self) -> float:
        self._verified = self._now()
        return self.virtual - self.overhead


def _numbers(ranks: int) -> tuple[int, ...]:
    """Numbers of ranks that may share a step: 1, 2, 4, ... and all."""
    return (*(1 << power for power in range(ranks.bit_length()) if 1 << power < ranks), ranks)
