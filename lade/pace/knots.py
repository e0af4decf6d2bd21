"""The widths at which the cost curve is learned, and linear interpolation between them. Width: tokens per row."""

from __future__ import annotations

from bisect import bisect_left

KNOTS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
WIDEST = KNOTS[-1]


def interpolation(width: float) -> tuple[int, float, int, float]:
    """Low knot, its weight, high knot and its weight: those on both sides of a width of 1 to `WIDEST`.

    The first knot's weight is always 0: costs are relative to it, so that its logarithm is 0.
    """
    if width <= 1:
        return 0, 0.0, 0, 0.0
    high = bisect_left(KNOTS, width)
    left, right = KNOTS[high - 1 : high + 1]
    weight = (width - left) / (right - left)
    return high - 1, 1 - weight if high > 1 else 0.0, high, weight


def nearest(width: float) -> int:
    """Index of the knot nearest to a width of 1 to `WIDEST`."""
    low, _, high, weight = interpolation(width)
    return high if weight >= 0.5 else low
