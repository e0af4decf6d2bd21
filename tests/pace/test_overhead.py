"""What a look for drafts takes, apart from what a tree takes longer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade.pace.overhead import Overhead

SECONDS = st.floats(1e-6, 10.0)


def test_nothing_is_known_until_both_were_timed() -> None:
    overhead = Overhead()
    assert overhead.ratio(1) == 0.0
    overhead.stepped(1, 2.0)
    assert overhead.ratio(1) == 0.0
    overhead.looked(1, 0.5)
    assert overhead.ratio(1) == 0.25
    other = Overhead()
    other.looked(1, 0.5)
    assert other.ratio(1) == 0.0


def test_each_number_of_rows_has_its_own() -> None:
    overhead = Overhead()
    for rows, look, plain in ((1, 0.5, 1.0), (8, 3.0, 2.0)):
        overhead.looked(rows, look)
        assert overhead.ratio(rows) == (0.0 if rows == 1 else 0.5)  # the last one that was known
        overhead.stepped(rows, plain)
        assert overhead.ratio(rows) == look / plain
    assert overhead.ratio(1) == overhead.ratio(2) == 0.5
    assert overhead.ratio(8) == overhead.ratio(2) == 1.5


def test_what_a_tree_takes_longer_is_not_of_the_look() -> None:
    """Trees and looks without drafts take turns: the first fall to the second, hardly the other way round."""
    overhead, found = Overhead(), []
    overhead.stepped(1, 1.0)
    for _ in range(100):
        found = [overhead.looked(1, 0.9), overhead.looked(1, 0.3)]
    assert found == pytest.approx([0.3, 0.3], abs=0.09)
    assert 0.3 <= overhead.ratio(1) < 0.4


@given(st.lists(SECONDS, min_size=1, max_size=50))
def test_the_part_of_a_look_is_no_more_than_all_and_within_what_was_seen(seconds: list[float]) -> None:
    overhead = Overhead()
    for index, each in enumerate(seconds):
        part = overhead.looked(1, each)
        assert min(seconds[: index + 1]) * (1 - 1e-9) <= part <= each


@given(SECONDS, SECONDS)
def test_times_that_change_are_followed(before: float, after: float) -> None:
    overhead = Overhead()
    for seconds in [before] * 5 + [after] * 400:
        overhead.looked(1, seconds)
        overhead.stepped(1, 2 * seconds)
    assert overhead.ratio(1) == pytest.approx(0.5, rel=0.01)
