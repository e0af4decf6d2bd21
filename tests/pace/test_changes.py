"""Change-point detection on standardised innovations."""

import pytest

from lade.pace.changes import CHANGES, Change, ChangeDetector

SLOW, FAST, NORMAL = 2 * CHANGES.outlier, -2 * CHANGES.outlier, 0.5 * CHANGES.outlier
NONE, LEVEL, SHAPE = Change.NONE, Change.LEVEL, Change.SHAPE


def observed(*steps: tuple[int, float]) -> list[Change]:
    detector = ChangeDetector()
    return [detector.observe(width, innovation) for width, innovation in steps]


def test_single_outliers_are_no_change() -> None:
    assert set(observed(*[(1, SLOW), (1, SLOW), (1, NORMAL)] * 9)) == {NONE}
    assert set(observed(*[(1, SLOW), (1, FAST)] * 9)) == {NONE}


@pytest.mark.parametrize("innovation", [SLOW, FAST])
def test_outliers_of_any_width_in_a_row_are_a_change_of_the_level(innovation: float) -> None:
    assert observed((1, NORMAL), (8, innovation), (1, innovation), (64, innovation)) == [NONE, NONE, NONE, LEVEL]
    assert observed((8, NORMAL), *[(8, innovation)] * 3) == [NONE, NONE, NONE, LEVEL]


def test_outliers_of_one_width_after_normal_steps_of_another_are_a_change_of_the_shape() -> None:
    assert observed((1, NORMAL), *[(32, SLOW)] * 3) == [NONE, NONE, NONE, SHAPE]
    assert observed(*[(1, NORMAL), (32, SLOW)] * 3) == [NONE] * 5 + [SHAPE]


def test_a_detected_change_starts_anew() -> None:
    assert observed((1, NORMAL), *[(32, SLOW)] * 6) == [NONE, NONE, NONE, SHAPE, NONE, NONE, SHAPE]
    assert observed(*[(1, NORMAL), (32, SLOW)] * 3, (1, NORMAL), (32, SLOW)) == [NONE] * 5 + [SHAPE, NONE, NONE]
