"""The suffix automaton against its definition, looked up in quadratic time."""

import random
from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from occurrences import STREAMS, TEXTS, longest_suffix, occurrences
from rowarrays import memory_of, row_of

from lade.memory import automaton, rowmemory
from lade.memory.automaton import (
    END,
    LENGTH,
    MOST_MOVES,
    MOST_STATES,
    MOVE_NUMBER,
    MOVES,
    STATE_NUMBER,
    STATES,
    TO,
    WIDTH,
    append,
    at,
    find_move,
    repeated,
)
from lade.memory.pools import fresh_pool
from lade.memory.row import OWN

pytestmark = pytest.mark.usefixtures("as_python")

POOL = fresh_pool()
PIECES = st.lists(TEXTS.map(lambda text: text[:7]), max_size=8)


def continuations(text: list[int], match: list[int]) -> list[int]:
    """What follows a match, first occurrence first; nothing follows the empty one."""
    return [text[end] for end in occurrences(text, match) if end < len(text)] if match else []


def automaton_of(*pieces: Sequence[int]) -> Any:
    """The array of a text that came in pieces, for each of which it grew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rowmemory, "TOKENS", 0)
        memory, length = memory_of(pool=POOL), 0
        for piece in pieces:
            length += len(piece)
            memory.reserve_text(length)
            for token in piece:
                append(row_of(memory).ints, OWN, token)
    return row_of(memory).ints


def match_of(ints: Any) -> tuple[int, int]:
    """The length of the longest suffix that also occurs earlier, and the index behind its last occurrence there."""
    state = repeated(ints, OWN)
    place = ints[OWN + STATES] + state * WIDTH
    return (ints[place + LENGTH], ints[place + END]) if state > 0 else (0, -1)


@given(PIECES, STREAMS)
def test_the_moves_from_the_root_spell_what_occurs(pieces: list[list[int]], stream: list[int]) -> None:
    ints, text = automaton_of(*pieces), [*chain(*pieces)]
    whole = [*text, *stream]
    for start in range(len(whole)):
        state = 0
        for end in range(start + 1, min(start + 6, len(whole)) + 1):
            string = whole[start:end]
            move, ends = find_move(ints, OWN, state, string[-1]), occurrences(text, string)
            assert (move >= 0) == bool(ends)
            if move < 0:
                break
            state = ints[ints[OWN + MOVES] + move * WIDTH + TO]
            place = ints[OWN + STATES] + state * WIDTH
            assert ints[place + LENGTH] >= len(string)
            assert ints[place + END] in ends
            assert ints[place + END] < len(text) or len(ends) == 1  # where something ever followed, it is known


@pytest.mark.parametrize("text", [[], [1], [1, 2]])
def test_a_text_without_repetition_has_no_match(text: list[int]) -> None:
    assert match_of(automaton_of(text)) == (0, -1)


@given(PIECES)
def test_the_match_is_the_longest_suffix_that_occurs_earlier(pieces: list[list[int]]) -> None:
    text = [*chain(*pieces)]
    length, end = match_of(automaton_of(*pieces))
    match = longest_suffix(text, continuations)
    assert length == len(match)
    assert end in (occurrences(text, match)[:-1] if match else [-1])
    assert (length, end) == match_of(automaton_of(text))  # pieces are as good as the whole


@given(TEXTS)
def test_the_last_occurrence_is_used(text: list[int]) -> None:
    """Exactly so where no bound cuts the renewal short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(automaton, "UPDATED", 100)
        _, end = match_of(automaton_of(text))
    match = longest_suffix(text, continuations)
    assert end == (occurrences(text, match)[-2] if match else -1)


@pytest.mark.parametrize("earlier", [[3], [3, 3], [5, 3], [5, 3, 3]])
def test_the_last_occurrence_is_used_within_the_bound(earlier: list[int]) -> None:
    """Each time after another token, so that no match is longer than `1 2`."""
    ints = automaton_of(
        [token for index, last in enumerate([*earlier, 5, 0]) for token in (10 + index, 1, 2, last)][:-1]
    )
    length, end = match_of(ints)
    assert (length, at(ints, OWN, end)) == (2, 5)


@given(TEXTS.filter(lambda text: bool(longest_suffix(text, continuations))), st.integers(1, 60))
def test_a_text_goes_on_as_it_did_and_then_round_and_round(text: list[int], count: int) -> None:
    """As if every token that was taken from the text had been written behind it."""
    ints, grown = automaton_of(text), list(text)
    _, end = match_of(ints)
    for step in range(count):
        grown.append(grown[end + step])
    assert [at(ints, OWN, end + step) for step in range(count)] == grown[len(text) :]


@pytest.mark.parametrize("period", [1, 2, 3])
def test_it_goes_round_a_loop(period: int) -> None:
    """Longer than the loop has been seen, although the text ends after one more round."""
    ints = automaton_of([9, *[index % period for index in range(4 * period)]])
    _, end = match_of(ints)
    assert [at(ints, OWN, end + step) for step in range(10 * period)] == [
        index % period for index in range(10 * period)
    ]


# What it costs, counted in numbers that are read

TOKENS = 3000


class Counted(list[int]):
    """An array that counts how often it is read."""

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.reads += 1
        return super().__getitem__(index)


def noise(vocabulary: int) -> list[int]:
    return random.Random(0).choices(range(vocabulary), k=TOKENS)


LONG = {
    "random": noise(32_000),
    "binary": noise(2),
    "one token": [7] * TOKENS,
    "one token at the end": [1, *[7] * TOKENS][:TOKENS],
    "one token at the start": [*[7] * TOKENS, 1][-TOKENS:],
    "periodic": [index % 50 for index in range(TOKENS)],
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_text_costs_a_few_reads_per_token(name: str) -> None:
    memory = memory_of(pool=POOL)
    memory.reserve_text(TOKENS)
    ints = Counted(memory.row().ints.tolist())
    for token in LONG[name]:
        append(ints, OWN, token)
    assert ints.reads <= 120 * TOKENS
    assert ints[OWN + STATE_NUMBER] <= MOST_STATES * TOKENS
    assert ints[OWN + MOVE_NUMBER] <= MOST_MOVES * TOKENS
