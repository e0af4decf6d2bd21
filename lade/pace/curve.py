"""How the time of a step grows with its width, learned from the steps themselves: a Kalman filter over a few knots.

Width: tokens in the forward per row. Every step measures level + curve(width) + noise, in logarithms. The level, the
cost of width 1, wanders with the machine; the curve is steady and smooth. Knows no batch, no context and no clock.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from lade.pace.changes import SUSPECT, Change, Changes

KNOTS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
WIDEST = KNOTS[-1]
PER_TOKEN = 0.02  # cost of a token, where nothing was measured
LEVEL, WANDER = 2.0, 0.02  # standard deviations: of a level that changed; of how far it moves per step
REFRESH, FORGET = 16, 0.01  # after so many steps this share of the first doubt comes back
NOISE, NOISE_RANGE, NOISE_RATE = 0.1, (0.02, 0.5), 0.03
IMPOSSIBLE = 4.0  # standard deviations, from which on a step does not count

Array = np.ndarray[Any, np.dtype[np.float64]]


def prior(tokens: float, rows: float = 1.0) -> float:
    """Logarithm of the cost over that of one token per row, where nothing is known."""
    return math.log((1 + PER_TOKEN * tokens) / (1 + PER_TOKEN * rows))


def monotone(logs: Sequence[float]) -> list[float]:
    """Per knot over the cost of width 1. Where the curve falls, both of its sides give way by half."""
    raised = accumulate(logs, max)
    lowered = reversed(list(accumulate(reversed(logs), min)))
    return [1.0, *(math.exp(max(0.0, (up + down) / 2)) for up, down in zip(raised, lowered, strict=True))]


def _spots() -> list[tuple[int, float, int, float]]:
    """Per width two entries of the state and their shares: linear between knots, nothing but the level at width 1."""
    spots = [(0, 0.0, 0, 0.0)] * 2
    for high in range(1, len(KNOTS)):
        left, right = KNOTS[high - 1 : high + 1]
        shares = ((width - left) / (right - left) for width in range(left + 1, right + 1))
        spots += [(high - 1, 1 - share if high > 1 else 0.0, high, share) for share in shares]
    return spots


def _doubt(one: int, other: int) -> float:
    """Covariance of what may differ from a guess: a jump from width 1 to more, the slope, bends anywhere."""
    return 0.15**2 + 0.5**2 * prior(one) * prior(other) + 0.06**2 * math.log2(min(one, other))


SPOTS = _spots()
DOUBT: Array = np.zeros((len(KNOTS), len(KNOTS)))
DOUBT[1:, 1:] = [[_doubt(one, other) for other in KNOTS[1:]] for one in KNOTS[1:]]


class Curve:
    """The curve of one kind of step.

    Attributes:
        state: the level, then per further knot the logarithm of its cost over the cost of width 1.
        doubt: the state's covariance.
        noise: standard deviation of one step.
    """

    def __init__(self, logs: Sequence[float]) -> None:
        """From a guess, as `logs` gives one, which the first steps overrule."""
        self.state: Array = np.array([0.0, *logs])
        self.doubt = DOUBT.copy()
        self.doubt[0, 0] = LEVEL**2
        self.noise = NOISE
        self._changes = Changes()
        self._steps = 0

    @property
    def logs(self) -> list[float]:
        logs: list[float] = self.state[1:].tolist()
        return logs

    def like(self, doubt: float) -> Curve:
        """For similar steps: starts where this one stands, with a little more doubt."""
        curve = copy.deepcopy(self)
        curve._open(doubt)
        return curve

    def observe(self, width: int, seconds: float) -> tuple[bool, Change]:
        """Learn from one step: whether it counted, and what turned out to have changed."""
        value = math.log(seconds)
        if not self._steps:
            self.state[0] = self._expected(width, value)[1]
        self._steps += 1
        self._open(0.0 if self._steps % REFRESH else FORGET, level=WANDER)
        spread, surprise, scale = self._expected(width, value)
        change = self._changes.seen(width, surprise / scale)
        if change is not Change.NONE:
            self._open(1.0 if change is Change.SHAPE else 0.0)
            spread, surprise, scale = self._expected(width, value)
        return self._learn(spread, surprise, scale), change

    def lucky(self, luck: float) -> list[float]:
        """The logarithms, each better by so many of its standard deviations."""
        lucky: list[float] = (self.state - luck * np.sqrt(self.doubt.diagonal().clip(0)))[1:].tolist()
        return lucky

    def _expected(self, width: int, value: float) -> tuple[Array, float, float]:
        """Covariance of the state with the step, how far the step is off, and the standard deviation of that."""
        low, less, high, more = SPOTS[width]
        spread = self.doubt[0] + less * self.doubt[low] + more * self.doubt[high]
        variance = spread[0] + less * spread[low] + more * spread[high] + self.noise**2
        expected = self.state[0] + less * self.state[low] + more * self.state[high]
        return spread, float(value - expected), math.sqrt(variance)

    def _learn(self, spread: Array, surprise: float, scale: float) -> bool:
        size = abs(surprise) / scale
        least, most = NOISE_RANGE
        self.noise *= 1 + NOISE_RATE * (1.25 * min(size, IMPOSSIBLE) - 1)
        self.noise = min(max(self.noise, least), most)
        if size > IMPOSSIBLE:
            return False
        weight = min(1.0, SUSPECT / size) if size else 1.0
        gains = weight / scale**2 * spread
        self.state += surprise * gains
        self.doubt -= np.outer(gains, spread)
        return True

    def _open(self, share: float, level: float = LEVEL) -> None:
        """Doubt again: the curve by a share of the prior's doubt, the level by its standard deviation."""
        if share:
            self.doubt += share * DOUBT
        self.doubt[0, 0] += level**2
