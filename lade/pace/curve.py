"""How the time of a step grows with its width, learned from the steps themselves: a Kalman filter over the knots.

Width: tokens in the forward per row, which may be a fraction. In logarithms, the time of a step is level + curve(width)
+ effects + noise. The level, the cost of width 1, is a random walk, since the machine's speed drifts; the curve is
constant and smooth. Effects are those of what else tells steps apart (`Beside`), and are learned too. Knows no context
and no clock.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from lade.pace.changes import CHANGES, Change, ChangeDetector, ChangePolicy
from lade.pace.knots import interpolation
from lade.pace.prior import PRIOR, Array, CurvePrior

MEAN_DEVIATION = 1.25  # 1 over the mean of |z| for a standard normal z, rounded


@dataclass(frozen=True)
class KalmanPolicy:
    """Noise of the filter, in logarithms of seconds, so 0.1 is about 10 %.

    No record says what data these values were chosen on. `tests/pace/test_cost.py` holds them to curves measured on a
    130M model, with lognormal noise of 3 % and outliers.

    Attributes:
        prior: mean and covariance of the curve before any step.
        changes: what makes outliers a change.
        level: standard deviation of the level at the start, and of its move at a change.
        effects: prior mean and standard deviation of those of `Beside`. The first is between 0, where reading weights
            takes all the time, and log 2, where computing does. The second was 0.34 with 8 rows of an 8M model, and
            0.01 to 0.2 with others (AVX-512, float32).
        drift: process noise: standard deviation of the level's move per step.
        refresh_every, refresh: process noise of the curve: every so many steps, this share of the prior's covariance.
        noise: standard deviation of the observation noise at the start.
        noise_range: its limits.
        noise_rate: learning rate at which it follows the innovations.
        huber: standardised innovation above which an observation's weight falls (Huber's weights).
        outlier: standardised innovation above which an observation is ignored.
    """

    prior: CurvePrior = PRIOR
    changes: ChangePolicy = CHANGES
    level: float = 2.0
    effects: tuple[tuple[float, float], ...] = ((0.35, 0.2), (0.1, 0.15))
    drift: float = 0.02
    refresh_every: int = 16
    refresh: float = 0.01
    noise: float = 0.1
    noise_range: tuple[float, float] = (0.02, 0.5)
    noise_rate: float = 0.03
    huber: float = 2.0
    outlier: float = 4.0


KALMAN = KalmanPolicy()


class Beside(NamedTuple):
    """What tells steps of one curve apart, beside their widths.

    Attributes:
        doublings: logarithm to base 2 of a step's rows, over any number that stays the same.
        first: 1 in the first step after requests have joined or left, when caches are cold; else 0.
    """

    doublings: float = 0.0
    first: float = 0.0


USUAL = Beside()
EFFECTS = len(USUAL)


def monotone(logs: Sequence[float]) -> list[float]:
    """Costs of all knots over that of width 1, never falling: the mean of the running maximum from the left and the
    running minimum from the right."""
    raised = accumulate(logs, max)
    lowered = reversed(list(accumulate(reversed(logs), min)))
    return [1.0, *(math.exp(max(0.0, (up + down) / 2)) for up, down in zip(raised, lowered, strict=True))]


class Curve:
    """The cost curve of one kind of step.

    Args:
        logs: prior mean, in the form of `logs`.

    Attributes:
        state: [knots + 2] the level, then per further knot the logarithm of its cost over the cost of width 1, then the
            effects.
        covariance: [knots + 2, knots + 2] of the state.
        noise: standard deviation of the observation noise.
    """

    def __init__(self, logs: Sequence[float], policy: KalmanPolicy = KALMAN) -> None:
        self._policy = policy
        means, deviations = zip(*policy.effects, strict=True)
        self.state: Array = np.array([0.0, *logs, *means])
        self.covariance: Array = np.diag(np.square([policy.level, *[0.0] * len(logs), *deviations]))
        self.covariance[:-EFFECTS, :-EFFECTS] += policy.prior.covariance()
        self.noise = policy.noise
        self._changes = ChangeDetector(policy.changes)
        self._steps = 0

    @property
    def logs(self) -> list[float]:
        """[knots - 1] logarithms of the costs of all knots but the first."""
        logs: list[float] = self.state[1:-EFFECTS].tolist()
        return logs

    def similar(self, share: float) -> Curve:
        """A curve for similar steps: this one, its covariance inflated by a share of the prior's."""
        curve = copy.deepcopy(self)
        curve._inflate(share, self._policy.level)
        return curve

    def observe(self, width: float, seconds: float, beside: Beside = USUAL) -> tuple[bool, Change]:
        """Update the state with one step: whether the step counted, and what was found to have changed."""
        value, policy = math.log(seconds), self._policy
        if not self._steps:
            self.state[0] = self._predict(width, value, beside)[1]
        self._steps += 1
        self._inflate(0.0 if self._steps % policy.refresh_every else policy.refresh, policy.drift)
        cross, innovation, scale = self._predict(width, value, beside)
        change = self._changes.observe(width, innovation / scale)
        if change is not Change.NONE:
            self._forget(change, width)
            cross, innovation, scale = self._predict(width, value, beside)
        return self._update(cross, innovation, scale), change

    def lower_bound(self, deviations: float) -> list[float]:
        """Lower confidence bound of `logs`: each less so many of its standard deviations."""
        bounds = self.state - deviations * np.sqrt(self.covariance.diagonal().clip(0))
        found: list[float] = bounds[1:-EFFECTS].tolist()
        return found

    def _predict(self, width: float, value: float, beside: Beside) -> tuple[Array, float, float]:
        """[knots + 2] covariance of the state with the observation, the innovation, and the innovation's deviation."""
        low, less, high, more = interpolation(width)

        def observed(known: Any) -> Any:
            curve = known[0] + less * known[low] + more * known[high]
            return curve + beside.doublings * known[-2] + beside.first * known[-1]

        cross = observed(self.covariance)
        variance, expected = observed(cross) + self.noise**2, observed(self.state)
        return cross, float(value - expected), math.sqrt(variance)

    def _update(self, cross: Array, innovation: float, scale: float) -> bool:
        policy, size = self._policy, abs(innovation) / scale
        least, most = policy.noise_range
        self.noise *= 1 + policy.noise_rate * (MEAN_DEVIATION * min(size, policy.outlier) - 1)
        self.noise = min(max(self.noise, least), most)
        if size > policy.outlier:
            return False
        weight = min(1.0, policy.huber / size) if size else 1.0
        gain = weight / scale**2 * cross
        self.state += innovation * gain
        self.covariance -= np.outer(gain, cross)
        return True

    def _inflate(self, share: float, level: float) -> None:
        """Add a share of the prior's covariance to the curve's, and a standard deviation to the level's."""
        if share:
            self.covariance[:-EFFECTS, :-EFFECTS] += share * self._policy.prior.covariance()
        self.covariance[0, 0] += level**2

    def _forget(self, change: Change, width: float) -> None:
        """The level, or the shape, is another one: steps of this width say so."""
        moved = np.zeros(len(self.state))
        moved[0] = self._policy.level
        if change is Change.SHAPE:
            self._inflate(1.0, 0.0)
            if width <= 1:  # only its own cost moved, to which those of the curve are relative
                moved[1:-EFFECTS] = -self._policy.level
        self.covariance += np.outer(moved, moved)
