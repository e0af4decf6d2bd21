"""How many prompt tokens a step reads beside requests that decode, so that their next tokens are not much later.

A step that reads prompts costs a step that reads none plus some time per prompt token. Both are measured as they pass.
Knows numbers and a clock: no tokens, no requests and no model.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

UNLIMITED = 1 << 30


@dataclass(frozen=True, slots=True)
class ReadingPolicy:
    """How a step's prompt tokens are bounded.

    On a CPU 192 prompt tokens beside 7 rows of an 8M model took a step 4.6 times as long as one that reads none.

    Attributes:
        slowdown: the time of a step that reads prompts, over that of one that reads none, where few requests have
            prompts to be read. Where u have and r decode, the prompts' time is up to 2 u² / r times as long: few wait
            then for many, and steps of small batches, which cost throughput, are fewer.
        first: tokens read while their cost is not known.
        least: tokens read at least.
        smoothing: weight of the past in the cost of a prompt token.
        recent: steps whose median is the time of one that reads none.
        age: steps after which such a time is measured anew.
    """

    slowdown: float = 1.8
    first: int = 48
    least: int = 16
    smoothing: float = 0.5
    recent: int = 9
    age: int = 1024


READING = ReadingPolicy()


@dataclass(slots=True)
class _Decoding:
    """Steps that read none, with about the same number of rows."""

    seconds: deque[float]
    last: int = 0  # number of the latest one

    @property
    def usual(self) -> float:
        return median(self.seconds)


class WholeReading:
    """No bound; the interface of `ReadingPace`."""

    def most(self, rows: int, unread: int) -> int:
        """The most prompt tokens of a step; 0 for one that is to time decoding.

        Args:
            rows: requests that decode.
            unread: requests whose prompts are to be read.
        """
        return UNLIMITED

    def begin(self) -> None:
        """A step begins."""

    def end(self, rows: int, tokens: int) -> None:
        """The step has ended: rows that decoded, and prompt tokens that were read."""


WHOLE = WholeReading()


class ReadingPace(WholeReading):
    """Bounds a step's prompt tokens by what steps took.

    Args:
        now: a clock in seconds.
    """

    def __init__(self, policy: ReadingPolicy = READING, now: Callable[[], float] = time.perf_counter) -> None:
        self._policy, self._now = policy, now
        self._decoding: dict[int, _Decoding] = {}  # by the logarithm to base 2 of rows
        self._steps, self._began = 0, 0.0
        self._seconds = self._tokens = 0.0  # of prompt tokens, the latest count most

    def most(self, rows: int, unread: int) -> int:
        if not rows:
            return UNLIMITED
        decoding, policy = self._decoding.get(_kind(rows)), self._policy
        if decoding is None or self._steps - decoding.last >= policy.age:
            return 0
        if not self._tokens:
            return policy.first
        slowdown = (policy.slowdown - 1) * max(1.0, 2 * unread**2 / rows)
        room = slowdown * decoding.usual * self._tokens
        return UNLIMITED if room >= UNLIMITED * self._seconds else max(policy.least, int(room / self._seconds))

    def begin(self) -> None:
        self._steps += 1
        self._began = self._now()

    def end(self, rows: int, tokens: int) -> None:
        if not rows:
            return
        seconds, decoding = self._now() - self._began, self._decoding.get(_kind(rows))
        if not tokens:
            if decoding is None:
                decoding = self._decoding[_kind(rows)] = _Decoding(deque(maxlen=self._policy.recent))
            decoding.seconds.append(seconds)
            decoding.last = self._steps
        elif decoding is not None:
            past = self._policy.smoothing
            self._seconds = past * self._seconds + max(0.0, seconds - decoding.usual)
            self._tokens = past * self._tokens + tokens


def _kind(rows: int) -> int:
    return (rows - 1).bit_length()
