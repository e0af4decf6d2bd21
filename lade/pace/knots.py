"""The widths at which the cost curve is learned, and linear interpolation between them. Width: tokens per row."""

from __future__ import annotations

KNOTS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
WIDEST = KNOTS[-1]


def _interpolation() -> list[tuple[int, float, int, float]]:
    rows = [(0, 0.0, 0, 0.0)] * 2  # width 0 is not used; width 1 has a log cost of 0
    for high in range(1, len(KNOTS)):
        left, right = KNOTS[high - 1 : high + 1]
        weights = ((width - left) / (right - left) for width in range(left + 1, right + 1))
        rows += [(high - 1, 1 - weight if high > 1 else 0.0, high, weight) for weight in weights]
    return rows


INTERPOLATION = _interpolation()
"""Per width up to `WIDEST` the knots on both sides and their weights: low knot, its weight, high knot, its weight.

The first knot's weight is always 0: costs are relative to it, so that its logarithm is 0.
"""


def nearest(width: int) -> int:
    """Index of the knot nearest to a width of 1 to `WIDEST`."""
    low, _, high, weight = INTERPOLATION[width]
    return high if weight >= 0.5 else low
