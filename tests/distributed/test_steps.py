"""How many ranks share a step: as many as make it the fastest, the same number on all ranks."""

import pytest

from lade.distributed.memory import Memory
from lade.distributed.steps import StepTimes, numbers
from lade.distributed.tried import AGAIN, FIRST, Tried, Way


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def decode(
    costs: dict[int, float], steps: int, tokens: int = 32, sending: float = 0.0, memory: Memory | None = None
) -> list[Way]:
    """Two ranks; rank 1's own clock stands still. Every second step a rank lacks tokens. Returns the choices.

    Args:
        sending: seconds that a step takes longer where tokens are sent.
    """
    clock = Clock()
    first, second = StepTimes(4, True, False, memory, clock), StepTimes(4, True, False, None, Clock())
    times = first.times()
    for rank in (first, second):
        rank.take(times)
    chosen = []
    for step in range(steps):
        for rank in (first, second):
            rank.begun()
        clock.now += 0.5  # drafting
        for rank in (first, second):
            rank.drafted()
        lacks = (lambda ranks: True) if step % 2 else (lambda ranks: False)
        way = first.begin(tokens, 1, lacks)
        assert memory or second.begin(tokens, 1, lacks) == way
        chosen.append(way)
        clock.now += costs[way.ranks] + sending * way.sends
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
    chosen = [way.ranks for way in decode(costs, 200)]
    assert chosen[12 : AGAIN - 1].count(best) == AGAIN - 13
    assert chosen.count(best) > 180


@pytest.mark.parametrize("sending", [-0.1, 0.1])
def test_what_ranks_lack(sending: float) -> None:
    """It is sent or computed again, whichever is faster; where nothing lacks, or one rank decodes, nothing is sent."""
    chosen = decode({1: 1.0, 2: 0.6, 4: 0.9}, 200, sending=sending)
    lacked = [way for way in chosen[1::2] if way.ranks == 2]
    assert lacked.count(Way(2, sends=sending < 0)) >= len(lacked) - FIRST - 1
    assert not any(way.sends for way in chosen[::2])
    assert not any(way.sends for way in decode({1: 1.0, 2: 1.1, 4: 1.5}, 200, sending=sending)[20 : AGAIN - 1])


def test_steps_that_other_processes_slowed_down() -> None:
    """Two of five steps are no reason to leave what is the fastest."""
    tried = Tried[int]()
    for step in range(AGAIN - 1):
        option = tried.choose([1, 2])
        slow = 10.0 if step % 5 in (3, 4) else 1.0
        tried.observe(option, slow if option == 1 and step > 10 else float(option))
        assert option == 1 or step <= 2 * FIRST


def test_what_becomes_faster() -> None:
    tried, chosen = Tried[int](), []
    for step in range(5 * AGAIN):
        chosen.append(tried.choose([1, 2]))
        tried.observe(chosen[-1], {1: 1.0, 2: 2.0 if step < AGAIN else 0.5}[chosen[-1]])
    assert set(chosen[10 : AGAIN - 1]) == {1}
    assert chosen[2 * AGAIN :].count(2) > 2.5 * AGAIN


def test_the_next_call_knows() -> None:
    memory = Memory(numbers(4))
    decode({1: 1.0, 2: 1.1, 4: 1.5}, 20, memory=memory)
    assert decode({1: 1.0, 2: 1.1, 4: 1.5}, 20, memory=memory) == [Way(1)] * 20


def test_roots_are_not_shared() -> None:
    lacks = lambda ranks: True  # noqa: E731
    assert StepTimes(4, adapts=False).begin(3, 3, lacks) == Way(1)
    assert StepTimes(4, adapts=False).begin(4, 3, lacks) == Way(4)


def test_the_moments_of_a_step() -> None:
    """A step lasts from one exchange to the next; drafting and learning are told apart."""
    clock = Clock()
    steps = StepTimes(2, False, now=clock)
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
