"""Sizes of a step that comes in few of them: a choice fills its size, or takes all that there is."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from lade.pace.belief import Belief
from lade.pace.bucketed import Bucketed
from lade.pace.controller import Controller
from lade.pace.sharing import Row
from lade.static.buckets import NODES

LIMIT = 48
ROWS = st.lists(st.lists(st.floats(0.05, 1), max_size=LIMIT - 1), min_size=1, max_size=4)


class Staircase:
    """Costs that grow at the sizes only."""

    def table(self, limit: int, context: int, rows: int) -> list[float]:
        return [1.0, *(1 + 0.02 * nodes for nodes in range(limit))]

    def known(self, tokens: int, context: int, rows: int) -> bool:
        return True


def rows_of(masses: Sequence[Sequence[float]]) -> list[Row]:
    return [Row([1.0, *sorted(each, reverse=True)], Belief()) for each in masses]


@given(ROWS)
def test_a_step_fills_its_size(masses: list[list[float]]) -> None:
    rows, sharing = rows_of(masses), Bucketed(NODES, LIMIT)
    chosen = Controller(Staircase(), LIMIT, sharing=sharing).choose(rows, 100)
    whole = sum(len(row.masses) for row in rows)
    assert all(1 <= nodes <= len(row.masses) for nodes, row in zip(chosen, rows, strict=True))
    assert sum(chosen) in {len(rows), whole, *NODES}
    counted = sharing.tokens(chosen)
    assert counted in {len(rows), *NODES} or counted > LIMIT * len(rows) * 2 / 3
    assert counted >= sum(chosen)


def test_whole_trees_cost_what_their_size_costs() -> None:
    """Of 33 nodes, 32 bring nearly as much in the size below."""
    (row,) = rows_of([[1.0] * 15 + [1e-3] * 17])
    plan = Bucketed(NODES, LIMIT).plan([row])
    assert list(plan.expected) == [1, 2, 4, 8, 16, 24, 32, 48]
    assert plan.split(48) == [33]
    assert plan.expected[48] - plan.expected[32] < 1.1e-3 * 1.01
    assert Bucketed(NODES, 40).plan([row]).expected.keys() == {1, 2, 4, 8, 16, 24, 32, 33}
    assert Bucketed(NODES, LIMIT).tokens([1, 1, 1]) == 3
    assert Bucketed(NODES, LIMIT).tokens([2, 1, 3]) == 8
