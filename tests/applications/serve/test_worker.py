"""When the engine's thread hands updates over, by a clock of its own."""

from lade.applications.serve.worker import Intervals


class Times:
    """A clock that a test moves."""

    now = 5.0

    def __call__(self) -> float:
        return self.now


def over(seconds: float, steps: list[float], urgent: frozenset[int] = frozenset()) -> list[int]:
    """After which of these steps updates are due."""
    clock = Times()
    intervals, due = Intervals(seconds, clock), list[int]()
    for number, step in enumerate(steps):
        clock.now += step
        if intervals.over(number in urgent):
            due.append(number)
    return due


def test_each_step_without_an_interval() -> None:
    assert over(0, [1, 1, 0, 2]) == [0, 1, 2, 3]


def test_steps_as_long_as_the_interval() -> None:
    assert over(2, [2, 2.5, 2]) == [0, 1, 2]


def test_no_later_than_the_interval() -> None:
    """Another step would end after it."""
    assert over(10, [4] * 6) == [1, 3, 5]
    assert over(10, [3] * 6) == [2, 5]


def test_what_is_urgent_is_due_at_once_and_begins_an_interval() -> None:
    assert over(10, [4, 4, 4, 4, 4], urgent=frozenset({0})) == [0, 2, 4]


def test_after_a_long_step() -> None:
    assert over(10, [1, 30, 1, 1]) == [1]
