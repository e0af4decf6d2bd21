"""Tells accidents from lasting changes: of the machine's speed, or of how the time of a step grows with its width.

One step in fifty takes several times as long, because another process ran. It is a change when it happens again and
again: to steps of any width, or to those of like width alone. Sees how surprising each step was, and no seconds.
"""

from __future__ import annotations

from enum import Enum

SUSPECT = 2.0  # standard deviations
LASTING = 3  # so many suspects in a row, all slower or all faster, are no accident
REGIONS = 5


class Change(Enum):
    """What to learn anew."""

    NONE = 0
    LEVEL = 1
    SHAPE = 2


class Changes:
    """The suspects of one curve. Regions of like width are 1, 2-4, 5-16, 17-64 and what is wider."""

    def __init__(self) -> None:
        self._row: list[int] = []  # regions of the latest steps, as far back as all were too slow, or all too fast
        self._sign = 0
        self._streaks = [0] * REGIONS  # per region; negative: too fast
        self._calm = 0  # region of the last step that was no suspect

    def seen(self, width: int, surprise: float) -> Change:
        """What this step, slower than expected by so many standard deviations, says together with those before it."""
        region = ((width - 1).bit_length() + 1) // 2
        sign = (surprise > SUSPECT) - (surprise < -SUSPECT)
        if not sign:
            self._calm, self._streaks[region] = region, 0
            self._row.clear()
            return Change.NONE
        if sign != self._sign:
            self._row.clear()
        self._sign = sign
        self._row.append(region)
        streak = self._streaks[region]
        self._streaks[region] = streak + sign if streak * sign > 0 else sign
        return self._judged(region)

    def _judged(self, region: int) -> Change:
        """Suspects of one width after calm steps of another speak of the shape, all else of the level."""
        change = Change.NONE
        if len(self._row) >= LASTING:
            change = Change.LEVEL if region == self._calm or len({*self._row}) > 1 else Change.SHAPE
            self._row.clear()
        elif abs(self._streaks[region]) >= LASTING:
            change = Change.SHAPE
        if change is Change.SHAPE:
            self._streaks = [0] * REGIONS
        return change
