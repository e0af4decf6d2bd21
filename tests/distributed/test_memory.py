"""When rank 0 decodes alone: where sharing costs more than it saves, by costs that are given."""

import pytest

from lade.distributed.memory import ENOUGH, LONGEST, WAIT, Memory


def shared(memory: Memory, costs: dict[int, float], steps: int = ENOUGH) -> bool:
    """Shared steps as `StepTimes` makes them. Returns whether rank 0 goes on alone."""
    for _ in range(steps):
        kind = memory.kind(32, 1)
        ranks = kind.ranks.choose(memory.numbers)
        kind.ranks.observe(ranks, costs[ranks])
        if memory.leaves():
            memory.left()
            return True
    return False


def alone(memory: Memory, seconds: float) -> int:
    """Steps alone until sharing is tried again."""
    steps = 0
    while memory.alone:
        memory.step_alone(32, 1, seconds)
        steps += 1
    memory.begin(False)
    return steps


@pytest.mark.parametrize(
    ("costs", "leaves"),
    [({1: 1.0, 2: 1.1, 4: 1.5}, True), ({1: 1.0, 2: 0.9, 4: 1.5}, True), ({1: 1.0, 2: 0.6, 4: 0.4}, False)],
)
def test_what_sharing_saves(costs: dict[int, float], leaves: bool) -> None:
    """As long as steps alone were not timed, a small gain is none."""
    assert shared(Memory((1, 2, 4)), costs) == leaves


@pytest.mark.parametrize(("seconds", "leaves"), [(1.0, False), (0.8, True)])
def test_steps_alone_that_were_timed(seconds: float, leaves: bool) -> None:
    """Other ranks may slow down rank 0 even where it alone computes a step: its time without them decides."""
    memory, costs = Memory((1, 2)), {1: 1.0, 2: 0.9}
    assert shared(memory, costs)
    alone(memory, seconds)
    assert shared(memory, costs) == leaves


def test_sharing_is_tried_again() -> None:
    """After a time that doubles as long as it loses."""
    memory, waits = Memory((1, 2)), []
    for _ in range(8):
        assert shared(memory, {1: 1.0, 2: 1.2})
        waits.append(alone(memory, 0.9))
    assert waits == [min(WAIT << trial, LONGEST) for trial in range(8)]


def test_sharing_that_becomes_cheap() -> None:
    memory = Memory((1, 2))
    assert shared(memory, {1: 1.0, 2: 1.2})
    alone(memory, 0.9)
    assert not shared(memory, {1: 1.0, 2: 0.5}, 10 * ENOUGH)
    assert shared(memory, {1: 1.0, 2: 1.2}, 10 * ENOUGH)
    assert alone(memory, 0.9) == WAIT


def test_steps_that_nobody_can_share() -> None:
    memory = Memory((1, 2))
    assert [memory.leaves() for _ in range(ENOUGH)] == [False] * (ENOUGH - 1) + [True]
