"""Change-point detection: tells single outliers from lasting changes of the machine's speed or of the cost curve.

About one step in fifty takes several times as long because another process ran: an outlier. Several outliers in a row
are a change: of the level if they have any width, of the curve's shape if they have similar widths. Sees standardised
innovations, no seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

REGIONS = 5  # widths 1, up to 4, 16, 64 and above


@dataclass(frozen=True, slots=True)
class ChangePolicy:
    """When outliers are a change. No record says what data these values were chosen on.

    Attributes:
        outlier: standardised innovation above which a step is an outlier, in standard deviations.
        run: consecutive outliers of one sign that make a change.
    """

    outlier: float = 2.0
    run: int = 3


class Change(Enum):
    """What must be learned anew."""

    NONE = 0
    LEVEL = 1
    SHAPE = 2


CHANGES = ChangePolicy()


class ChangeDetector:
    """The outliers of one curve."""

    def __init__(self, policy: ChangePolicy = CHANGES) -> None:
        self._policy = policy
        self._run: list[int] = []  # regions of the latest consecutive outliers of one sign
        self._sign = 0
        self._streaks = [0] * REGIONS  # outliers in a row per region; negative: too fast
        self._calm = 0  # region of the latest step that was no outlier

    def observe(self, width: float, innovation: float) -> Change:
        """What one step says together with those before it.

        Args:
            width: tokens per row.
            innovation: how much slower than expected the step was, in standard deviations.
        """
        region = ((math.ceil(width) - 1).bit_length() + 1) // 2
        sign = (innovation > self._policy.outlier) - (innovation < -self._policy.outlier)
        if not sign:
            self._calm, self._streaks[region] = region, 0
            self._run.clear()
            return Change.NONE
        if sign != self._sign:
            self._run.clear()
        self._sign = sign
        self._run.append(region)
        streak = self._streaks[region]
        self._streaks[region] = streak + sign if streak * sign > 0 else sign
        return self._detect(region)

    def _detect(self, region: int) -> Change:
        """Outliers of one region are a change of shape if the last normal step was in another; else of the level."""
        change = Change.NONE
        if len(self._run) >= self._policy.run:
            change = Change.LEVEL if region == self._calm or len({*self._run}) > 1 else Change.SHAPE
            self._run.clear()
        elif abs(self._streaks[region]) >= self._policy.run:
            change = Change.SHAPE
        if change is Change.SHAPE:
            self._streaks = [0] * REGIONS
        return change
