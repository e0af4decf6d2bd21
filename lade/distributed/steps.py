"""How many ranks share a step, by what steps took: few where the exchange of shares costs more than it saves.

Where several do, keys and values that a rank lacks are sent or computed again, whichever makes steps faster. Rank 0
measures and sends its times with every exchange, so that all ranks decide alike. Knows numbers and a clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from lade.distributed.memory import Memory
from lade.distributed.tried import Kind, Way
from lade.pace.pace import Moments


class StepTimes(Moments):
    """The steps of a group.

    Args:
        ranks: of the group.
        adapts: whether fewer ranks may share a step; otherwise all share every step, and nothing is sent.
        leaves: whether rank 0 may go on alone.
        memory: what earlier calls on the same model have learned; changed.
        alone: whether rank 0 decodes the call alone from its beginning.

    Attributes:
        alone: whether rank 0 decodes alone, to the end of the call.
        virtual: seconds of all steps on rank 0, as all ranks know them.
        overhead: seconds of drafting and learning in the last step.
    """

    def __init__(
        self,
        ranks: int,
        adapts: bool,
        leaves: bool = True,
        memory: Memory | None = None,
        now: Callable[[], float] = time.perf_counter,
        alone: bool = False,
    ) -> None:
        super().__init__(now)
        self._ranks, self._adapts, self.alone = ranks, adapts, alone
        self._leaves = adapts and leaves
        self._memory = memory or Memory(numbers(ranks))
        self._step: tuple[Kind, Way, bool] | None = None
        self.virtual = self.overhead = 0.0
        self._sent: float | None = None  # when the last exchange began
        self._drafted: float | None = None
        self._verified: float | None = None
        self._began = 0.0

    def begin(self, tokens: int, rows: int, lacks: Callable[[int], bool]) -> Way:
        """A forward of so many tokens begins.

        Args:
            lacks: whether one of so many ranks lacks keys and values that another one has.
        """
        if tokens == rows:
            self._step = None
            return Way(1)
        if not self._adapts:
            return Way(self._ranks)
        kind = self._memory.kind(tokens, rows)
        way = Way(kind.ranks.choose(self._memory.numbers))
        lacked = way.ranks > 1 and lacks(way.ranks)
        if lacked:
            way = kind.ways.choose([way, Way(way.ranks, sends=True)])
        self._step = kind, way, lacked
        return way

    def times(self) -> list[float]:
        """Seconds since the last exchange, those of drafting and learning in it, and 1 if rank 0 goes on alone."""
        now, sent = self._now(), self._sent
        self._sent = now
        drafted, verified = self._drafted, self._verified
        overhead = 0.0 if drafted is None or verified is None else drafted - verified
        alone = self._leaves and sent is not None and not self.alone and self._memory.leaves()
        return [0.0 if sent is None else now - sent, max(0.0, overhead), float(alone)]

    def take(self, times: Sequence[float]) -> None:
        seconds, self.overhead, alone = times
        if alone:
            self.alone = True
            self._memory.left()
        self.virtual += seconds
        if self._step is not None and seconds > 0:
            kind, way, lacked = self._step
            kind.observe(way, lacked, max(0.0, seconds - self.overhead))
        self._step = None

    def begin_alone(self) -> None:
        """A forward of rank 0 alone begins."""
        self._began = self._now()

    def end_alone(self, tokens: int, rows: int) -> None:
        """It is verified."""
        self._memory.step_alone(tokens, rows, self._now() - self._began)
        self.take(self.times())

    def begun(self) -> float:
        return self.virtual

    def drafted(self) -> float:
        self._drafted = self._now()
        return self.virtual

    def verified(self) -> float:
        self._verified = self._now()
        return self.virtual - self.overhead


def numbers(ranks: int) -> tuple[int, ...]:
    """Numbers of ranks that may share a step: 1, 2, 4, ... and all."""
    return (*(1 << power for power in range(ranks.bit_length()) if 1 << power < ranks), ranks)
