"""Rows that are behind: what their tokens are worth, and that they get more of a step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade.pace.belief import Belief
from lade.pace.lag import weights
from lade.pace.sharing import PACKED, Row

LEFT = st.lists(st.integers(0, 1 << 30), min_size=1, max_size=9)


@given(LEFT)
def test_the_mean_is_one_and_no_row_behind_is_worth_less(left: list[int]) -> None:
    found = weights(left)
    assert sum(found) == pytest.approx(len(found))
    assert all(found[a] >= found[b] for a in range(len(left)) for b in range(len(left)) if left[a] >= left[b])


@given(st.integers(0, 1 << 30), st.integers(1, 9))
def test_rows_at_the_same_place_are_worth_the_same(left: int, rows: int) -> None:
    assert weights([left] * rows) == [1.0] * rows


def test_of_equal_trees_the_row_behind_keeps_more_nodes() -> None:
    masses = [1.0, 0.5, 0.25, 0.125]
    ahead, behind = weights([10, 20])
    plan = PACKED.plan([Row(masses, Belief(), weight=ahead), Row(masses, Belief(), weight=behind)])
    assert plan.split(4) == [1, 3]
    assert plan.expected[4] > PACKED.plan([Row(masses, Belief())] * 2).expected[4]
