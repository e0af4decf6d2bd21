"""Prompt tokens beside requests that decode: bounded by what steps took. The clock is made by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade.pace.reading import READING, UNLIMITED, WHOLE, ReadingPace


class Machine:
    """Steps whose time is linear in rows and prompt tokens."""

    def __init__(self, per_row: float = 1.0, per_token: float = 0.1) -> None:
        self.per_row, self.per_token, self.time = per_row, per_token, 0.0
        self.pace = ReadingPace(now=lambda: self.time)

    def step(self, rows: int, unread: int = 1, share: int = 192) -> tuple[int, float]:
        """One step of requests with long prompts: prompt tokens, and seconds."""
        tokens = min(share, self.pace.most(rows, unread)) if unread else 0
        self.pace.begin()
        seconds = self.per_row * rows + self.per_token * tokens
        self.time += seconds
        self.pace.end(rows, tokens)
        return tokens, seconds


def test_alone_prompts_are_not_bounded() -> None:
    assert ReadingPace().most(0, 5) == WHOLE.most(7, 5) == UNLIMITED


@given(rows=st.integers(2, 40), per_row=st.floats(0.5, 4), per_token=st.floats(0.02, 0.2))
def test_a_step_takes_at_most_its_slowdown(rows: int, per_row: float, per_token: float) -> None:
    machine, most = Machine(per_row, per_token), READING.slowdown * per_row * rows
    assert machine.step(rows)[0] == 0, "the time of decoding is not known"
    assert machine.step(rows)[0] == READING.first
    for _ in range(5):
        tokens, seconds = machine.step(rows)
        assert tokens == READING.least or seconds <= most + 1e-9
        assert tokens == 192 or seconds > most - 1.001 * per_token


@pytest.mark.parametrize(("rows", "tokens"), [(2, [16, 51, 115, 204]), (8, [51, 51, 115, 204])])
def test_the_more_wait_the_more_is_read(rows: int, tokens: list[int]) -> None:
    """With the square of their number over that of those that decode."""
    machine = Machine(per_token=0.125)
    machine.step(rows, unread=0)
    machine.step(rows)
    assert [machine.step(rows, unread, share=256)[0] for unread in (1, 2, 3, 4)] == tokens


def test_free_prompt_tokens_are_not_bounded() -> None:
    machine = Machine(per_token=0.0)
    machine.step(4)
    machine.step(4)
    assert machine.step(4)[0] == 192


def test_prompts_that_become_dearer() -> None:
    """Attention to a long context costs more."""
    machine = Machine(per_row=2.0, per_token=0.05)
    for _ in range(3):
        before = machine.step(8)[0]
    machine.per_token = 0.2
    for _ in range(8):
        after = machine.step(8)[0]
    assert before == 192
    assert after == pytest.approx(64, abs=2)


def test_the_time_of_decoding_is_measured_anew() -> None:
    machine = Machine()
    reads = [machine.step(4)[0] > 0 for _ in range(READING.age + 3)]
    assert [index for index, read in enumerate(reads) if not read] == [0, READING.age + 1]
    assert machine.step(5)[0] == 0, "another number of rows"


def test_one_slow_step_changes_little() -> None:
    machine = Machine()
    for rows in (1, 1, 1):
        machine.step(rows, unread=0)
    machine.per_row = 50.0
    machine.step(1, unread=0)
    machine.per_row = 1.0
    machine.step(1)
    assert machine.step(1)[0] == READING.least
