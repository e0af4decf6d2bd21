"""The prior of cost curves, and linear interpolation between knots."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade.pace.knots import KNOTS, WIDEST, interpolation, nearest
from lade.pace.prior import PRIOR, CurvePrior


def test_the_covariance_is_positive_definite_and_read_only() -> None:
    covariance = PRIOR.covariance()
    assert covariance.shape == (len(KNOTS), len(KNOTS))
    assert not covariance[0].any()
    assert np.linalg.eigvalsh(covariance[1:, 1:]).min() > 0
    with pytest.raises(ValueError, match="read-only"):
        covariance[0, 0] = 1.0
    assert CurvePrior(jump=1.0).covariance()[1, 1] > covariance[1, 1]


@given(st.floats(KNOTS[1], WIDEST) | st.sampled_from(KNOTS[1:]))
def test_widths_are_interpolated_between_the_knots_on_both_sides(width: float) -> None:
    low, less, high, more = interpolation(width)
    assert KNOTS[low] < width <= KNOTS[high]
    weights = (less if low else 1 - more) * KNOTS[low] + more * KNOTS[high]
    assert weights == pytest.approx(width)


@given(st.floats(0, KNOTS[1]))
def test_between_the_first_knots_the_logarithm_grows_from_zero(width: float) -> None:
    assert interpolation(width) == (0, 0.0, width > 1, pytest.approx(max(width - 1, 0.0)))


def test_the_nearest_knot() -> None:
    widths = (1, 1.4, 1.5, 2, 5, 6, 7, 13, 14, 200, 256)
    assert [KNOTS[nearest(width)] for width in widths] == [1, 1, 2, 2, 4, 8, 8, 12, 16, 192, 256]
