"""Back-off after fruitless looks: when steps rest, for how long, and what ends it."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade.pace.rest import Rest, RestPolicy

POLICY = RestPolicy(
    patience=6,
    most=10,
    retries_after_repeat=2,
    retries_after_accepted=4,
    retries_after_reference=3,
    overhead=0.1,
    rest=3,
    longest=10,
)
LONG = 9.0  # overhead of a look after which steps rest as long as they may


def resting() -> Rest:
    rest = Rest(POLICY)
    for _ in range(POLICY.patience):
        rest.looked(0.0, LONG)
    return rest


def steps(rest: Rest, number: int = 5) -> list[bool]:
    return [rest.step() for _ in range(number)]


def looks_left(rest: Rest) -> int:
    """Fruitless looks before steps rest again."""
    looks = 0
    while not rest.fruitless:
        rest.looked(0.0, 0.0)
        looks += 1
    return looks


def rests(rest: Rest, overhead: float = LONG) -> int:
    """Steps that rest after one more look without credit."""
    rest.looked(0.0, overhead)
    number = 0
    while rest.step():
        number += 1
    return number


def test_steps_rest_after_as_many_fruitless_looks_as_patience_says() -> None:
    rest = Rest(POLICY)
    assert looks_left(rest) == POLICY.patience
    assert steps(rest) == [False] * 5  # looks take no time
    assert steps(resting()) == [True, True, True, False, False]


def test_the_rest_is_in_proportion_to_the_overhead() -> None:
    rest = resting()
    steps(rest)
    rest.looked(0.0, 0.25)
    assert steps(rest) == [True, True, False, False, False]


def test_steps_rest_longer_each_time_until_a_look_pays() -> None:
    rest = resting()
    assert steps(rest, POLICY.rest + 1) == [True] * POLICY.rest + [False]
    assert [rests(rest) for _ in range(3)] == [6, 10, 10]
    rest.looked(2.5 * LONG, LONG)
    assert looks_left(rest) == 2  # 1.5 and a part of one
    assert [rests(rest) for _ in range(2)] == [6, 10]  # the one that ran out was the first


def test_what_drafts_save_pays_for_looks() -> None:
    rest = resting()
    rest.looked(3.0, 1.0)
    assert looks_left(rest) == 2
    rest.looked(1.0, 1.0)
    assert rest.fruitless  # it saved no more than it took


def test_drafts_that_save_less_than_looks_take_use_up_the_credit() -> None:
    rest = Rest(POLICY)
    for _ in range(2 * POLICY.patience - 1):
        rest.looked(0.5, 1.0)
        assert not rest.fruitless
    rest.looked(0.5, 1.0)
    assert rest.fruitless


def test_there_is_a_largest_credit() -> None:
    for overhead in (0.001, 0.0):  # looks that take nothing, or whose time is not known
        rest = resting()
        rest.looked(1.0, overhead)
        assert looks_left(rest) == POLICY.most


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0.125, 4)), max_size=200))
def test_looks_take_hardly_more_than_they_save(found: list[tuple[float, float]]) -> None:
    """Without retries: no more than the credit at the start, and the share of the time while steps rest."""
    rest, taken, steps = Rest(POLICY), 0.0, 0
    overhead = max((each for _, each in found), default=1.0)
    for saved, _ in found:
        while rest.step():
            steps += 1
        rest.looked(saved, overhead)
        taken += overhead - saved
        steps += 1
    looks = steps / (1 + min(int(overhead / POLICY.overhead), POLICY.rest))
    assert taken <= overhead * (POLICY.patience + looks) + 1e-6


def test_a_repeated_token_gives_some_looks() -> None:
    rest = resting()
    steps(rest)
    rest.after_repeat()
    assert looks_left(rest) == POLICY.retries_after_repeat


@pytest.mark.parametrize(
    ("sign", "looks"),
    [
        (Rest.after_accepted, POLICY.retries_after_accepted),
        (Rest.after_reference, POLICY.retries_after_reference),
    ],
)
def test_an_accepted_draft_or_a_reference_ends_the_rest_and_gives_some_looks(
    sign: Callable[[Rest], None], looks: int
) -> None:
    rest = resting()
    sign(rest)
    assert steps(rest) == [False] * 5
    assert looks_left(rest) == looks


def test_retries_that_were_in_vain_are_fewer_next_time() -> None:
    rest, given_ = resting(), []
    for _ in range(4):
        rest.after_accepted()
        given_.append(looks_left(rest))
    assert given_ == [4, 2, 1, 0]
    rest.after_accepted()
    assert looks_left(rest) == 1  # parts of a look add up
    for _ in range(4):  # that pay
        rest.looked(2 * LONG, LONG)
        assert looks_left(rest) == 1
    rest.after_accepted()
    assert looks_left(rest) == POLICY.retries_after_accepted


def test_the_first_credit_is_no_retry() -> None:
    rest = Rest(POLICY)
    rest.after_accepted()
    assert looks_left(rest) == POLICY.patience
    rest.after_accepted()
    assert looks_left(rest) == POLICY.retries_after_accepted


def test_a_share_of_the_rows_gives_its_part_of_the_looks() -> None:
    rest = resting()
    steps(rest)
    rest.after_repeat(0.25)
    rest.after_accepted(1 / 16)
    assert looks_left(rest) == 0
    rest.after_repeat(0.125)
    assert looks_left(rest) == 1


def test_a_reference_of_one_row_of_many_gives_one_look_whatever_came_before() -> None:
    rest = resting()
    for _ in range(9):
        rest.after_reference(1 / 64)
        assert looks_left(rest) == 1


def test_part_of_a_look_ends_no_rest() -> None:
    rest = resting()
    rest.after_accepted(1 / 8)
    assert steps(rest) == [True] * POLICY.rest + [False] * (5 - POLICY.rest)
    rest.after_accepted(1 / 8)
    assert looks_left(rest) == 1


def test_looks_that_are_left_are_not_taken_away() -> None:
    rest = Rest(POLICY)
    rest.looked(0.0, LONG)
    rest.after_repeat()
    rest.after_accepted()
    assert looks_left(rest) == POLICY.patience - 1
