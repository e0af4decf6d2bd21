"""Which of two ways makes the next step. The clock is made by hand."""

from collections import Counter

import pytest

from lade.pace.turns import TURNS, Turns


class Ways:
    """Two ways whose turns take so many seconds and emit so many tokens."""

    def __init__(self, seconds: tuple[float, float], tokens: tuple[int, int]) -> None:
        self.seconds, self.tokens = seconds, tokens
        self.time = 0.0
        self.turns = Turns(lambda: self.time)

    def run(self, count: int) -> list[bool]:
        found = []
        for _ in range(count):
            way = self.turns.next()
            self.time += self.seconds[way]
            self.turns.end(self.tokens[way])
            found.append(way)
        return found


@pytest.mark.parametrize(
    ("seconds", "tokens", "faster"),
    [((1.0, 2.0), (1, 1), False), ((2.0, 1.0), (1, 1), True), ((1.0, 2.0), (1, 4), True), ((2.0, 1.0), (4, 1), False)],
)
def test_the_faster_way_makes_most_steps(seconds: tuple[float, float], tokens: tuple[int, int], faster: bool) -> None:
    ways = Ways(seconds, tokens)
    ways.run(2 * (TURNS.trial + 2))
    found = Counter(ways.run(4 * TURNS.every))
    assert found[not faster] == 4


def test_the_first_turn_of_a_way_does_not_count() -> None:
    ways = Ways((1.0, 1.5), (1, 3))
    ways.run(TURNS.trial + 1)
    assert ways.turns.next()
    ways.time += 1e6  # compiles
    ways.turns.end(1)
    ways.run(TURNS.trial + 1)
    assert Counter(ways.run(2 * TURNS.every))[True] > TURNS.every


def test_a_turn_is_not_counted_where_one_of_its_steps_is_not() -> None:
    """Nor is what passes between steps, nor a turn that emits nothing."""
    ways = Ways((1.0, 1.5), (1, 3))
    ways.run(2 * (TURNS.trial + 2))
    for seconds, tokens in ((1e6, 1.0), (1e6, 0.0)):
        assert ways.turns.next()
        ways.time += seconds
        ways.turns.end(tokens, counts=not tokens)
        ways.time += 1e6
        ways.turns.begin()
        ways.time += 0.5
        ways.turns.end(tokens)
    assert Counter(ways.run(2 * TURNS.every))[True] > TURNS.every


def test_a_way_that_becomes_slow_is_left() -> None:
    ways = Ways((1.0, 0.5), (1, 1))
    assert ways.run(100)[-1]
    ways.seconds = (1.0, 9.0)
    ways.run(10)
    assert not ways.run(5)[-1]
