"""The prior of cost curves, and linear interpolation between knots."""

import numpy as np
import pytest

from lade.pace.knots import INTERPOLATION, KNOTS, WIDEST, nearest
from lade.pace.prior import PRIOR, CurvePrior


def test_the_covariance_is_positive_definite_and_read_only() -> None:
    covariance = PRIOR.covariance()
    assert covariance.shape == (len(KNOTS), len(KNOTS))
    assert not covariance[0].any()
    assert np.linalg.eigvalsh(covariance[1:, 1:]).min() > 0
    with pytest.raises(ValueError, match="read-only"):
        covariance[0, 0] = 1.0
    assert CurvePrior(jump=1.0).covariance()[1, 1] > covariance[1, 1]


def test_widths_are_interpolated_between_the_knots_on_both_sides() -> None:
    assert len(INTERPOLATION) == WIDEST + 1
    for width in range(KNOTS[1], WIDEST + 1):
        low, less, high, more = INTERPOLATION[width]
        assert KNOTS[low] < width <= KNOTS[high] or width == KNOTS[high]
        weights = (less if low else 1 - more) * KNOTS[low] + more * KNOTS[high]
        assert weights == pytest.approx(width)
    assert [KNOTS[nearest(width)] for width in (1, 2, 5, 6, 7, 13, 14, 200, 256)] == [1, 2, 4, 8, 8, 12, 16, 192, 256]
