"""How many ranks share a step: as many as make it the fastest, the same number on all ranks."""

import pytest

from lade.distributed.steps import AGAIN, StepTimes


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def decode(costs: dict[int, float], steps: int, tokens: int = 32) -> list[int]:
    """Two ranks; rank 1's own clock stands still. Returns the choices."""
    clock = Clock()
    first, second = StepTimes(4, True, clock), StepTimes(4, True, Clock())
    times = first.times()
    for rank in (first, second):
        rank.take(times)
    chosen = []
    for _ in range(steps):
        for rank in (first, second):
            rank.begun()
        clock.now += 0.5  # drafting
        for rank in (first, second):
            rank.drafted()
        ranks = first.begin(tokens, 1)
        assert second.begin(tokens, 1) == ranks
        chosen.append(ranks)
        clock.now += costs[ranks]
        times = first.times()
        for rank in (first, second):
            rank.take(times)
            rank.verified()
        assert first.virtual == second.virtual
        assert first.overhead == second.overhead
    return chosen


@pytest.mark.parametrize(
    ("costs", "best"), [({1: 1.0, 2: 0.6, 4: 0.4}, 4), ({1: 1.0, 2: 0.6, 4: 0.9}, 2), ({1: 1.0, 2: 1.1, 4: 1.5}, 1)]
)
def test_the_fastest(costs: dict[int, float], best: int) -> None:
    chosen = decode(costs, 200)
    assert chosen[12 : AGAIN - 1].count(best) == AGAIN - 13
    assert chosen.count(best) > 180


def test_roots_are_not_shared() -> None:
    assert StepTimes(4, adapts=False).begin(3, 3) == 1
    assert StepTimes(4, adapts=False).begin(4, 3) == 4


def test_the_moments_of_a_step() -> None:
    """A step lasts from one exchange to the next; drafting and learning are told apart."""
    clock = Clock()
    steps = StepTimes(2, False, clock)
    steps.take(steps.times())
    steps.verified()
    clock.now += 2.0  # learning
    began = steps.begun()
    clock.now += 1.0  # drafting
    drafted = steps.drafted()
    clock.now += 4.0  # the forward
    steps.take(steps.times())
    verified = steps.verified()
    assert steps.begun() - began == 7.0
    assert (drafted - began) + (steps.begun() - verified) == 3.0
