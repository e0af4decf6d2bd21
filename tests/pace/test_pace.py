"""What is timed between two drafts, and whose costs it becomes; with a clock that is wound by hand."""

from collections.abc import Sequence

import pytest

from lade.pace.controller import COLD, LONGEST, PATIENCE
from lade.pace.pace import TOLD, Pace, WholeBudget


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Notes:
    """Costs that write down what they are told: a node for nothing, or `slope`."""

    def __init__(self, known: bool = True) -> None:
        self.slope, self.is_known = 0.0, known
        self.observed: list[tuple[int, int, int, float]] = []
        self.saved = 0

    def observe(self, tokens: int, context: int, rows: int, seconds: float) -> None:
        self.observed.append((tokens, context, rows, seconds))

    def table(self, limit: int, context: int, rows: int) -> Sequence[float]:
        return [1.0, *(1 + self.slope * further for further in range(limit))]

    def known(self, tokens: int, context: int, rows: int) -> bool:
        return self.is_known

    def save(self) -> None:
        self.saved += 1


def run(pace: Pace, clock: Clock, carried: tuple[int, int, int], *seconds: float) -> int:
    """One step: drafting, the forward, learning. Returns what was worth growing."""
    _, context, rows = carried
    room = pace.begin(context, rows)
    clock.now += seconds[0]
    if room > 1:
        pace.choose([[1.0, 0.5]] * rows, context)
    pace.carry(*carried)
    clock.now += seconds[1]
    pace.verified()
    clock.now += seconds[2]
    return room


def test_a_step_lasts_from_one_draft_to_the_next() -> None:
    clock, notes = Clock(), Notes(known=False)
    pace = Pace(notes, 16, clock)  # type: ignore[arg-type]
    for _ in range(COLD):  # the first ones of a call tell nothing
        run(pace, clock, (3, 90, 1), 9.0, 9.0, 9.0)
    run(pace, clock, (5, 100, 2), 0.125, 0.25, 0.125)
    run(pace, clock, (7, 103, 1), 0.25, 1.0, 0.25)
    assert notes.observed == [(10, 100, 2, 0.5)]
    pace.begin(110, 1)
    assert notes.observed[1:] == [(7, 103, 1, 1.5)]


def test_one_token_alone_costs_no_drafting_and_no_learning() -> None:
    clock, notes = Clock(), Notes(known=False)
    pace = Pace(notes, 16, clock)  # type: ignore[arg-type]
    for rows in (1,) * COLD + (1, 3):
        run(pace, clock, (1, 100, rows), 0.25, 2.0, 0.125)
    pace.begin(100, 3)
    assert notes.observed == [(1, 100, 1, 2.0), (3, 100, 3, 2.0)]


def test_what_is_known_is_told_once_in_a_while() -> None:
    clock, notes = Clock(), Notes(known=True)
    pace = Pace(notes, 16, clock)  # type: ignore[arg-type]
    for nodes in range(2, 2 + 5 * TOLD):
        run(pace, clock, (nodes, 100, 1), 0.25, 0.5, 0.25)
    assert [tokens for tokens, *_ in notes.observed] == [1 + TOLD * times for times in range(1, 5)]


@pytest.mark.parametrize(("looking", "rest"), [(0.0045, 0), (0.0225, 4), (0.0525, 10), (3.0, LONGEST)])
def test_the_more_a_look_takes_the_more_steps_do_without(looking: float, rest: int) -> None:
    """Where drafts are never worth their cost; a moving average, so not at once."""
    clock, notes = Clock(), Notes()
    notes.slope = 9.0
    pace = Pace(notes, 16, clock)  # type: ignore[arg-type]
    looked = []
    for _ in range(2000):
        room = run(pace, clock, (1, 100, 1), looking / 2, 1.0, looking / 2)
        looked.append(room > 1)
    assert looked[:PATIENCE] == [True] * PATIENCE
    assert sum(looked[1000:]) == pytest.approx(1000 / (rest + 1), rel=0.25)


def test_the_time_before_the_first_step_and_after_the_last_is_nobodys() -> None:
    clock, notes = Clock(), Notes()
    pace = Pace(notes, 16, clock)  # type: ignore[arg-type]
    clock.now += 77
    run(pace, clock, (3, 100, 1), 1.0, 1.0, 1.0)
    clock.now += 77
    pace.end()
    assert notes.observed == []
    assert notes.saved == 1


def test_steps_that_look_for_nothing_are_not_timed() -> None:
    clock, notes = Clock(), Notes(known=False)
    notes.slope = 9.0
    pace = Pace(notes, 16, clock)  # type: ignore[arg-type]
    steps = [(run(pace, clock, (1, context, 1), 0.5, 1.0, 0.5), context) for context in range(100, 200)]
    looked = [context for room, context in steps[COLD:-1] if room > 1]
    assert len(looked) < 30
    assert [context for _, context, _, _ in notes.observed] == looked


def test_what_decided_is_told_at_the_end() -> None:
    pace = Pace(Notes(), 16, Clock())  # type: ignore[arg-type]
    assert pace.begin(100, 1) == 16
    assert pace.choose([[1.0, 0.5, 0.25]], 100) == 3
    assert pace.begin(100, 1) == 8
    assert pace.choose([[1.0]], 100) == 1
    assert pace.end() == {"most tokens per second": 1, "nothing to draft": 1}


def test_what_came_true_reaches_the_choice() -> None:
    clock = Clock()
    pace = Pace(Notes(), 16, clock)  # type: ignore[arg-type]
    for _ in range(32):
        pace.begin(100, 1)
        pace.choose([[1.0, 0.9]], 100)
        pace.learn(0.9, 0.0)
        pace.carry(1, 100, 1)
        pace.verified()
    assert pace.choose([[1.0, 0.9]], 100) == 1


@pytest.mark.parametrize("limit", [1, 2, 9])
def test_the_room_is_the_limit_at_first(limit: int) -> None:
    assert Pace(Notes(), limit, Clock()).begin(100, 1) == limit  # type: ignore[arg-type]
    assert WholeBudget(limit).begin(100, 1) == limit


def test_the_whole_budget_is_every_step_s() -> None:
    whole = WholeBudget(9)
    assert whole.choose([[1.0], [1.0, 0.1, 0.1]], 100) == 3
    assert whole.end() == {}
