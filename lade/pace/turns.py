"""Which of two ways makes the next step: the one whose tokens took less time, and now and then the other one.

Knows no drafts and no model.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TurnPolicy:
    """How two ways are compared. Not chosen on a device yet.

    Attributes:
        trial: turns of each way before they are compared, the first of which is not counted: it may compile.
        every: period of the turns of the slower way.
        decay: weight of the past in the moving averages.
    """

    trial: int = 4
    every: int = 32
    decay: float = 0.9


TURNS = TurnPolicy()


class Turns:
    """Turns of two ways, `False` and `True`; one takes some steps, of which only the time inside counts.

    Args:
        now: a clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter, policy: TurnPolicy = TURNS) -> None:
        self._now, self._policy = now, policy
        self._counts, self._seconds, self._tokens = [0, 0], [0.0, 0.0], [0.0, 0.0]
        self._way: bool | None = None  # of the running turn
        self._began = self._spent = self._emitted = 0.0
        self._counted = True
        self._compared = 0

    def next(self) -> bool:
        """The way of the next turn, whose first step begins."""
        if self._way is not None and self._counted and self._emitted > 0:
            self._note(self._way)
        self._way = self._chosen()
        self._spent, self._emitted, self._counted = 0.0, 0.0, True
        self.begin()
        return self._way

    def begin(self) -> None:
        """Another step of this turn begins."""
        self._began = self._now()

    def end(self, tokens: float, counts: bool = True) -> None:
        """A step is over.

        Args:
            tokens: that it emitted, per row.
            counts: whether its time says anything: not where it has made what later ones find.
        """
        self._spent += self._now() - self._began
        self._emitted += tokens
        self._counted &= counts

    def _note(self, way: bool) -> None:
        self._counts[way] += 1
        if self._counts[way] == 1:
            return
        decay = self._policy.decay
        self._seconds[way] = decay * self._seconds[way] + self._spent
        self._tokens[way] = decay * self._tokens[way] + self._emitted

    def _chosen(self) -> bool:
        for way in (False, True):
            if self._counts[way] <= self._policy.trial:
                return way
        faster = self._seconds[True] * self._tokens[False] < self._seconds[False] * self._tokens[True]
        self._compared += 1
        return faster != (self._compared % self._policy.every == 0)
