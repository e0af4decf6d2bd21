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
    """Turns of two ways, `False` and `True`; a turn lasts until the next one is asked for.

    Args:
        now: a clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter, policy: TurnPolicy = TURNS) -> None:
        self._now, self._policy = now, policy
        self._counts, self._seconds, self._tokens = [0, 0], [0.0, 0.0], [0.0, 0.0]
        self._running: tuple[bool, float, int] | None = None
        self._compared = 0

    def next(self, emitted: int) -> bool:
        """The way of the next turn.

        Args:
            emitted: tokens so far. Fewer than before begin other texts, which says nothing about the last turn.
        """
        now = self._now()
        if self._running is not None:
            self._end(*self._running, now, emitted)
        way = self._chosen()
        self._running = way, now, emitted
        return way

    def _end(self, way: bool, began: float, before: int, now: float, emitted: int) -> None:
        self._counts[way] += 1
        if self._counts[way] == 1 or emitted <= before:
            return
        decay = self._policy.decay
        self._seconds[way] = decay * self._seconds[way] + now - began
        self._tokens[way] = decay * self._tokens[way] + emitted - before

    def _chosen(self) -> bool:
        for way in (False, True):
            if self._counts[way] <= self._policy.trial:
                return way
        faster = self._seconds[True] * self._tokens[False] < self._seconds[False] * self._tokens[True]
        self._compared += 1
        return faster != (self._compared % self._policy.every == 0)
