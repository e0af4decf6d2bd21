"""Back-off after fruitless looks: when steps rest, for how long, and what ends it."""

from lade.pace.rest import Rest, RestPolicy

POLICY = RestPolicy(patience=6, retries_after_repeat=2, retries_after_accepted=4, overhead=0.1, longest=3)


def resting() -> Rest:
    rest = Rest(POLICY)
    for _ in range(POLICY.patience):
        rest.found_nothing(9.0)
    return rest


def steps(rest: Rest, number: int = 5) -> list[bool]:
    return [rest.step() for _ in range(number)]


def looks_left(rest: Rest) -> int:
    """Fruitless looks before steps rest again."""
    looks = 0
    while not rest.fruitless:
        rest.found_nothing(0.0)
        looks += 1
    return looks


def test_steps_rest_after_as_many_fruitless_looks_as_patience_says() -> None:
    rest = Rest(POLICY)
    assert looks_left(rest) == POLICY.patience
    assert steps(rest) == [False] * 5  # looks take no time
    assert steps(resting()) == [True, True, True, False, False]


def test_the_rest_is_in_proportion_to_the_overhead() -> None:
    rest = resting()
    steps(rest)
    rest.found_nothing(0.25)
    assert steps(rest) == [True, True, False, False, False]


def test_a_useful_look_counts_fruitless_ones_anew() -> None:
    rest = resting()
    steps(rest)
    rest.found()
    assert looks_left(rest) == POLICY.patience


def test_a_repeated_token_gives_some_looks() -> None:
    rest = resting()
    steps(rest)
    rest.after_repeat()
    assert looks_left(rest) == POLICY.retries_after_repeat


def test_an_accepted_draft_ends_the_rest_and_gives_some_looks() -> None:
    rest = resting()
    rest.after_accepted()
    assert steps(rest) == [False] * 5
    assert looks_left(rest) == POLICY.retries_after_accepted


def test_a_share_of_the_rows_gives_its_part_of_the_looks() -> None:
    rest = resting()
    steps(rest)
    rest.after_repeat(0.25)
    rest.after_accepted(1 / 16)
    assert looks_left(rest) == 0
    rest.after_repeat(0.125)
    assert looks_left(rest) == 1


def test_part_of_a_look_ends_no_rest() -> None:
    rest = resting()
    rest.after_accepted(1 / 8)
    assert steps(rest) == [True] * POLICY.longest + [False] * (5 - POLICY.longest)
    rest.after_accepted(1 / 8)
    assert looks_left(rest) == 1


def test_looks_that_are_left_are_not_taken_away() -> None:
    rest = Rest(POLICY)
    rest.found_nothing(9.0)
    rest.after_repeat()
    rest.after_accepted()
    assert looks_left(rest) == POLICY.patience - 1
