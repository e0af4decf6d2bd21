"""Which time is taken for the cost of which step; with a clock that is set by hand."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from lade.pace.pace import Pace, WholeBudget
from lade.pace.policy import PACE
from lade.pace.sharing import PACKED, PADDED, Row

OVERHEAD, REST, TIMING = PACE.overhead, PACE.rest, PACE.timing


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Notes:
    """Records the steps that were timed; a node costs `slope`."""

    def __init__(self, known: bool = True) -> None:
        self.slope, self.is_known = 0.0, known
        self.observed: list[tuple[int, int, int, float]] = []
        self.first: list[bool] = []  # of each
        self.saved = 0

    def observe(self, tokens: int, context: int, rows: int, seconds: float, first: bool = False) -> None:
        self.observed.append((tokens, context, rows, seconds))
        self.first.append(first)

    def table(self, limit: int, context: int, rows: int) -> Sequence[float]:
        return [1.0, *(1 + self.slope * further for further in range(limit))]

    def known(self, tokens: int, context: int, rows: int) -> bool:
        return self.is_known

    def save(self) -> None:
        self.saved += 1


class RootsKnown(Notes):
    """All steps but those of one token per row are timed, and these need not be."""

    def known(self, tokens: int, context: int, rows: int) -> bool:
        return tokens == rows


def begin(pace: WholeBudget, context: int = 100, rows: int = 1) -> int:
    return pace.begin([context] * rows, [pace.start() for _ in range(rows)])


def choose(pace: WholeBudget, *rows: Sequence[float]) -> list[int]:
    return pace.choose([Row(masses, pace.start()) for masses in rows])


def run(
    pace: Pace, clock: Clock, carried: tuple[int, int, int], *seconds: float, masses: Sequence[float] = (1.0, 0.5)
) -> bool:
    """One step: drafting a tree for each row, the forward, learning. Returns whether it looks for drafts."""
    nodes, context, rows = carried
    looks = begin(pace, context, rows) > rows
    clock.now += seconds[0]
    if looks:
        choose(pace, *[masses] * rows)
    pace.carry([nodes] * rows)
    clock.now += seconds[1]
    pace.verified()
    clock.now += seconds[2]
    pace.ended()
    return looks


def test_a_step_lasts_from_its_draft_to_the_end_of_its_learning() -> None:
    """What an engine's caller does between two steps is no cost of a step."""
    clock, notes = Clock(), RootsKnown()
    pace = Pace(notes, 16, clock)  # type: ignore[arg-type]
    for _ in range(TIMING.warm_up):  # their times are ignored
        run(pace, clock, (3, 90, 1), 9.0, 9.0, 9.0)
    assert run(pace, clock, (5, 100, 2), 0.125, 0.25, 0.125)
    clock.now += 60.0
    assert run(pace, clock, (7, 103, 1), 0.25, 1.0, 0.25)
    assert notes.observed == [(10, 100, 2, 0.25)]  # without what any look takes
    clock.now += 60.0
    begin(pace, 110)
    assert notes.observed[1:] == [(7, 103, 1, 1.0)]
    pace.pause()
    assert run(pace, clock, (9, 104, 1), 0.5, 1.0, 0.25)
    begin(pace, 120)
    longer = 0.25 * (1 - OVERHEAD.rising)  # by its tree, as far as is known
    assert notes.observed[2:] == [(9, 104, 1, pytest.approx(1.0 + longer))]


def test_a_step_that_also_reads_prompts_is_not_timed() -> None:
    clock, notes = Clock(), Notes(known=False)
    pace = Pace(notes, 16, clock)  # type: ignore[arg-type]
    for _ in range(TIMING.warm_up):
        run(pace, clock, (3, 90, 1), 9.0, 9.0, 9.0)
    run(pace, clock, (5, 100, 1), 0.125, 0.25, 0.125)
    run(pace, clock, (6, 100, 1), 9.0, 9.0, 9.0)
    pace.pause()
    clock.now += 99.0
    run(pace, clock, (7, 103, 1), 0.25, 1.0, 0.25)
    begin(pace, 110)
    assert notes.observed == [(5, 100, 1, 0.5), (7, 103, 1, 1.0)]  # the last one looks for drafts


def test_one_token_alone_costs_no_drafting_and_no_learning() -> None:
    clock, notes = Clock(), Notes(known=False)
    pace = Pace(notes, 16, clock)  # type: ignore[arg-type]
    for rows in (1,) * TIMING.warm_up + (1, 3):
        run(pace, clock, (1, 100, rows), 0.25, 2.0, 0.125)
    begin(pace, 100, 3)
    assert notes.observed == [(1, 100, 1, 2.0), (3, 100, 3, 2.0)]


def test_the_first_step_of_other_rows_is_known_as_such() -> None:
    """And that after one that was not timed."""
    clock, notes = Clock(), Notes(known=False)
    pace = Pace(notes, 16, clock)  # type: ignore[arg-type]
    for rows in (1, 1, 1, 2, 2, 3, 2):
        run(pace, clock, (5, 100, rows), 1.0, 1.0, 1.0)
    pace.pause()
    for _ in range(2):
        run(pace, clock, (5, 100, 2), 1.0, 1.0, 1.0)
    begin(pace, 100, 2)
    assert [rows for *_, rows, _ in notes.observed] == [1, 2, 2, 3, 2, 2]
    assert notes.first == [False, True, False, True, True, False]


def test_a_step_of_one_token_that_was_not_timed_is_repeated_at_the_next_but_one() -> None:
    """So that drafts are sent meanwhile."""
    clock, notes = Clock(), Notes(known=False)
    pace = Pace(notes, 16, clock)  # type: ignore[arg-type]
    looked = list[bool]()
    for step in range(TIMING.warm_up + 9):
        looked.append(run(pace, clock, (1, 100, 1), 1.0, 1.0, 1.0))
        if step in (TIMING.warm_up, TIMING.warm_up + 2):
            pace.pause()
    assert looked[TIMING.warm_up :] == [False, True, False, True, False, *[True] * 3, False]


def test_drafts_are_looked_for_where_no_step_is_timed() -> None:
    """As in an engine that always reads a prompt."""
    clock = Clock()
    pace = Pace(Notes(known=False), 16, clock)  # type: ignore[arg-type]
    looked = list[bool]()
    for _ in range(2 * TIMING.repeats + 64):
        looked.append(run(pace, clock, (1, 100, 1), 1.0, 1.0, 1.0))
        pace.pause()
    assert TIMING.repeats <= looked.count(False) <= TIMING.repeats + 7
    assert (False, False) not in pairwise(looked)


@pytest.mark.parametrize("rows", [1, 4])
def test_a_reference_ends_a_rest(rows: int) -> None:
    clock = Clock()
    pace = Pace(Notes(known=True), 16, clock)  # type: ignore[arg-type]

    def looks() -> bool:
        return run(pace, clock, (1, 100, rows), 2.0, 1.0, 0.0, masses=[1.0])

    while looks() or looks():
        pass
    pace.start()
    assert not looks()
    pace.start(reference=True)
    assert [looks() for _ in range(9)].index(False) == REST.retries_after_reference // rows


def test_steps_of_known_cost_are_timed_now_and_then() -> None:
    clock, notes = Clock(), Notes(known=True)
    pace = Pace(notes, 16, clock)  # type: ignore[arg-type]
    for nodes in range(2, 2 + 5 * TIMING.every):
        run(pace, clock, (nodes, 100, 1), 0.25, 0.5, 0.25)
    assert [tokens for tokens, *_ in notes.observed] == [1 + TIMING.every * times for times in range(1, 5)]


def test_steps_of_one_token_to_be_timed_are_whichever_others_are() -> None:
    clock, notes = Clock(), Notes(known=True)
    pace = Pace(notes, 16, clock)  # type: ignore[arg-type]
    run(pace, clock, (2, 100, 1), 0.25, 0.5, 0.25)
    pace.pause()
    steps = range(3, 3 + TIMING.baseline_every)
    asked = [nodes for nodes in steps if not run(pace, clock, (nodes, 100, 1), 0.25, 0.5, 0.25)]
    assert asked == [1 + TIMING.baseline_every]
    observed = [tokens for tokens, *_ in notes.observed]
    assert observed[-1] == asked[0]
    assert observed[-1] - observed[-2] < TIMING.every


@pytest.mark.parametrize(("overhead", "rest"), [(0.0045, 0), (0.0225, 4), (0.0525, 10), (3.0, REST.longest)])
def test_the_longer_a_look_takes_the_more_steps_rest(overhead: float, rest: int) -> None:
    """Where drafts are never worth their cost. The overhead is a moving average, so not at once."""
    clock, notes = Clock(), Notes()
    notes.slope = 9.0
    pace = Pace(notes, 16, clock)  # type: ignore[arg-type]
    looked = []
    for _ in range(2000):
        looked.append(run(pace, clock, (1, 100, 1), overhead / 2, 1.0, overhead / 2))
    assert looked[: REST.patience] == [True] * REST.patience
    assert sum(looked[1000:]) == pytest.approx(1000 / (rest + 1), rel=0.25)


def test_the_time_before_the_first_step_and_after_the_last_is_ignored() -> None:
    clock, notes = Clock(), Notes()
    pace = Pace(notes, 16, clock)  # type: ignore[arg-type]
    clock.now += 77
    run(pace, clock, (3, 100, 1), 1.0, 1.0, 1.0)
    clock.now += 77
    pace.end()
    assert notes.observed == []
    assert notes.saved == 1


def test_steps_that_rest_are_not_timed() -> None:
    clock, notes = Clock(), Notes(known=False)
    notes.slope = 9.0
    pace = Pace(notes, 16, clock)  # type: ignore[arg-type]
    steps = [(run(pace, clock, (1, context, 1), 0.5, 1.0, 0.5), context) for context in range(100, 200)]
    looked = [context for looks, context in steps[TIMING.warm_up : -1] if looks]
    assert len(looked) < 30
    assert [context for _, context, _, _ in notes.observed] == looked


def test_packed_rows_cost_as_many_tokens_as_they_have_at_their_mean_context() -> None:
    for sharing, tokens, context in ((PADDED, 15, 300), (PACKED, 8, 200)):
        clock, notes = Clock(), Notes(known=False)
        pace = Pace(notes, 16, clock, sharing=sharing)  # type: ignore[arg-type]
        beliefs = [pace.start() for _ in range(3)]
        for _ in range(TIMING.warm_up + 2):
            pace.begin([100, 200, 300], beliefs)
            pace.carry([5, 1, 2])
            clock.now += 1.0
            pace.verified()
            pace.ended()
        assert notes.observed == [(tokens, context, 3, 1.0)]


def test_rows_join_and_leave_between_steps() -> None:
    """The size is kept per row."""
    for sharing in (PADDED, PACKED):
        pace = Pace(Notes(), 16, Clock(), sharing=sharing)  # type: ignore[arg-type]
        for rows in (1, 4, 2, 3):
            room = begin(pace, rows=rows)
            assert room == 16 * rows
            assert choose(pace, *[[1.0, *[0.5] * 15]] * rows) == [16] * rows


def test_reasons_are_counted() -> None:
    pace = Pace(Notes(), 16, Clock())  # type: ignore[arg-type]
    assert begin(pace) == 16
    assert choose(pace, [1.0, 0.5, 0.25]) == [3]
    assert begin(pace) == 8
    assert choose(pace, [1.0]) == [1]
    assert pace.end() == {"most tokens per second": 1, "nothing to draft": 1}


def test_rejected_drafts_change_the_choice() -> None:
    pace = Pace(Notes(), 16, Clock())  # type: ignore[arg-type]
    row = Row([1.0, 0.9], pace.start())
    for _ in range(32):
        pace.begin([100], [row.belief])
        pace.choose([row])
        pace.learn(row.belief, 0.9, 0.0)
        pace.carry([1])
        pace.verified()
        pace.ended()
    assert pace.choose([row]) == [1]
    assert choose(pace, [1.0, 0.9]) == [2]  # another text


@pytest.mark.parametrize("limit", [1, 2, 9])
def test_the_room_is_the_limit_at_first(limit: int) -> None:
    assert begin(Pace(Notes(), limit, Clock()), 100, 2) == 2 * limit  # type: ignore[arg-type]
    assert begin(WholeBudget(limit), 100, 2) == 2 * limit


def test_every_row_takes_its_whole_budget() -> None:
    whole = WholeBudget(9)
    assert choose(whole, [1.0], [1.0, 0.1, 0.1]) == [1, 3]
    assert whole.end() == {}


def test_another_way_to_run_the_model_has_other_costs_and_looks() -> None:
    """An engine whose machine code is ready: until then looks took longer than steps, and most steps rested."""
    clock, before, after = Clock(), Notes(), Notes()
    pace = Pace(before, 16, clock)  # type: ignore[arg-type]
    for _ in range(200):
        nodes = 2 if begin(pace) > 1 else 1
        clock.now += 5.0
        if nodes > 1:
            choose(pace, [1.0, 0.5])
        pace.carry([nodes])
        clock.now += 1.0
        pace.verified()
        pace.ended()
        before.slope = 0.1
    assert pace.fruitless
    pace.use(after)  # type: ignore[arg-type]
    looked = [run(pace, clock, (2, 100, 1), 0.1, 1.0, 0.1) for _ in range(REST.longest + 20)]
    assert looked[-20:] == [True] * 20
    assert pace.end()
    assert (before.saved, after.saved) == (1, 1)
    assert after.observed
