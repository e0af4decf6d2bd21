"""How rows share a step: against brute force over all ways to give each row a number of nodes."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade.pace.belief import Belief
from lade.pace.controller import Controller
from lade.pace.knots import KNOTS
from lade.pace.policy import PACE
from lade.pace.sharing import PACKED, PADDED, Row, Sharing

SIZE = PACE.size
LIMIT = 8
SHARINGS = pytest.mark.parametrize("sharing", [PADDED, PACKED], ids=("padded", "packed"))


class Table:
    """Costs by tokens per row that grow by the same for each."""

    def __init__(self, slope: float) -> None:
        self.slope = slope

    def table(self, limit: int, context: int, rows: int) -> list[float]:
        return [1.0, *(1 + self.slope * further for further in range(limit))]

    def known(self, tokens: int, context: int, rows: int) -> bool:
        return True


def row_of(masses: Sequence[float], holds: float = 1.0) -> Row:
    belief = Belief()
    belief.holds = holds
    return Row(masses, belief)


@st.composite
def rows_of(draw: st.DrawFn, most: int = 3) -> list[Row]:
    """Rows with few nodes, in nearly falling order of probability."""
    masses = st.lists(st.floats(0, 1), max_size=LIMIT - 1).map(lambda found: [1.0, *sorted(found, reverse=True)])
    return draw(st.lists(st.builds(row_of, masses, st.floats(0.05, 1)), min_size=1, max_size=most))


def gain(rows: Sequence[Row], nodes: Sequence[int]) -> float:
    """Expected tokens per row."""
    drafted = (row.belief.holds * sum(row.masses[1:kept]) for row, kept in zip(rows, nodes, strict=True))
    return 1 + sum(drafted) / len(rows)


def speed(rows: Sequence[Row], nodes: Sequence[int], slope: float) -> float:
    return gain(rows, nodes) / (1 + slope * (sum(nodes) / len(rows) - 1))


def every_split(rows: Sequence[Row]) -> list[tuple[int, ...]]:
    return [*itertools.product(*(range(1, len(row.masses) + 1) for row in rows))]


@given(rows_of(), st.floats(0, 0.3))
def test_packed_rows_get_nearly_the_fastest_of_all_splits(rows: list[Row], slope: float) -> None:
    """Of those whose sum is a size; and of all with the chosen sum exactly the best."""
    chosen = Controller(Table(slope), LIMIT, sharing=PACKED).choose(rows, 100)
    whole = sum(len(row.masses) for row in rows)
    sizes = {len(rows), whole, *KNOTS, *(knot * len(rows) for knot in KNOTS)}
    speeds = {split: speed(rows, split, slope) for split in every_split(rows) if sum(split) in sizes}
    best = max(speeds.values())
    if sum(chosen) == len(rows):
        assert best < SIZE.start / SIZE.hysteresis * (1 + 1e-9) or whole == len(rows)
    else:  # the rest is spent on exploration
        assert speeds[tuple(chosen)] >= (1 - SIZE.exploration) * best * (1 - 1e-9)
        assert best >= SIZE.start / SIZE.hysteresis * (1 - 1e-9)
    alike = [split for split in speeds if sum(split) == sum(chosen)]
    assert gain(rows, chosen) >= max(gain(rows, split) for split in alike) * (1 - 1e-9)


@given(rows_of(), st.floats(0, 0.3))
def test_padded_rows_get_nearly_the_fastest_of_all_common_sizes(rows: list[Row], slope: float) -> None:
    chosen = Controller(Table(slope), LIMIT).choose(rows, 100)
    longest = max(len(row.masses) for row in rows)
    cuts = {size: [min(size, len(row.masses)) for row in rows] for size in {*KNOTS, longest} if size <= longest}
    speeds = {size: gain(rows, split) / (1 + slope * (size - 1)) for size, split in cuts.items()}
    size = max(chosen)
    assert chosen == cuts[size]
    if size > 1:
        assert speeds[size] >= (1 - SIZE.exploration) * max(speeds.values()) * (1 - 1e-9)


@given(rows_of(most=5))
def test_a_plan_names_every_size_up_to_the_whole_trees(rows: list[Row]) -> None:
    for sharing in (PADDED, PACKED):
        plan = sharing.plan(rows)
        sizes, lengths = [*plan.expected], [len(row.masses) for row in rows]
        assert sizes == sorted({*sizes})
        assert (sizes[0], sizes[-1]) == (len(rows), sharing.tokens(lengths))
        assert plan.split(sizes[0]) == [1] * len(rows)
        assert plan.split(sizes[-1]) == lengths
        for size, expected in plan.expected.items():
            split = plan.split(size)
            assert all(1 <= kept <= length for kept, length in zip(split, lengths, strict=True))
            assert sharing.tokens(split) == size
            assert expected == pytest.approx(gain(rows, split))


@given(st.lists(st.lists(st.floats(0, 1), max_size=6), min_size=1, max_size=4))
def test_in_any_order_of_probabilities_a_row_keeps_its_first_nodes(masses: list[list[float]]) -> None:
    """A node may be likelier than one before it: then it is in no step without that one."""
    rows = [row_of([1.0, *found]) for found in masses]
    plan = PACKED.plan(rows)
    splits = [plan.split(size) for size in range(len(rows), sum(len(row.masses) for row in rows) + 1)]
    for before, after in itertools.pairwise(splits):
        assert sorted(new - old for old, new in zip(before, after, strict=True)) == [*[0] * (len(rows) - 1), 1]
    assert {size: gain(rows, plan.split(size)) for size in plan.expected} == pytest.approx(dict(plan.expected))


@given(rows_of(most=1), st.floats(0, 0.3))
def test_for_one_row_both_ways_are_the_same(rows: list[Row], slope: float) -> None:
    padded, packed = PADDED.plan(rows), PACKED.plan(rows)
    assert dict(packed.expected) == dict(padded.expected)
    assert [packed.split(size) for size in packed.expected] == [padded.split(size) for size in padded.expected]
    assert [*PACKED.sizes(1)] == [*PADDED.sizes(1)] == [*KNOTS]
    length = len(rows[0].masses)
    for sharing in (PADDED, PACKED):
        assert sharing.groups(rows, 7) == [(rows, 7)]
        assert (sharing.least(SIZE.least_grown, 1), sharing.tokens([length]), sharing.context([9])) == (8, length, 9)


def test_a_hopeless_row_gets_its_root_and_its_neighbour_gets_nodes() -> None:
    likely = [0.9**depth for depth in range(7)]
    for hopeless in (row_of(likely, holds=0.02), row_of([1.0, *[0.001] * 7]), row_of([1.0])):
        assert Controller(Table(0.05), LIMIT, sharing=PACKED).choose([hopeless, row_of(likely)], 100) == [1, 7]


def test_many_hopeless_rows_do_not_keep_one_from_drafting() -> None:
    """Padded to the longest tree, none of them would draft."""
    rows = [row_of([0.9**depth for depth in range(5)]), *[row_of([1.0, *[0.001] * 7])] * 7]
    assert Controller(Table(0.15), LIMIT, sharing=PADDED).choose(rows, 100) == [1] * 8
    assert Controller(Table(0.15), LIMIT, sharing=PACKED).choose(rows, 100) == [5, *[1] * 7]


@SHARINGS
@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_trees_grow_to_the_last_choice_and_a_size_more(sharing: Sharing, rows: int) -> None:
    """At least as far as the tree of one row; no further than the limit."""
    controller, beliefs = Controller(Table(0.0), LIMIT, sharing=sharing), [Belief() for _ in range(rows)]
    controller.choose([Row([1.0], belief) for belief in beliefs], 100)
    grown = [controller.room(100, beliefs, 0.0)]
    assert rows + SIZE.least_grown - 1 <= grown[0] <= rows * LIMIT
    for _ in range(20):
        nodes = [grown[-1] // rows + (row < grown[-1] % rows) for row in range(rows)]
        trees = [Row([1.0, *[0.9] * (kept - 1)], belief) for kept, belief in zip(nodes, beliefs, strict=True)]
        assert controller.choose(trees, 100) == nodes
        grown.append(controller.room(100, beliefs, 0.0))
        assert grown[-1] == min(rows * LIMIT, next(size for size in sharing.sizes(rows) if size > grown[-2]))


def test_nodes_beyond_the_room_do_not_count_as_cut() -> None:
    """The likeliest child of each root is there even where other rows use up the room."""
    controller, beliefs = Controller(Table(0.1), 48, sharing=PACKED), [Belief() for _ in range(3)]
    controller.choose([Row([1.0], belief) for belief in beliefs], 100)
    for _ in range(3):
        room = controller.room(100, beliefs, 0.0)
        first, *others = beliefs
        rows = [Row([1.0, *[0.9] * (room - 3)], first), *(Row([1.0, 1e-9], belief) for belief in others)]
        assert controller.choose(rows, 100) == [room - 2, 1, 1]
        assert controller.room(100, beliefs, 0.0) > room
