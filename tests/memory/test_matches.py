"""Matches of the own text: the longest repeated suffix, and what goes on behind one mismatch."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from occurrences import longest_repeated
from rowarrays import memory_of, nodes_of, place, predicted, write

from lade.memory.matches import BEFORE, END, LENGTH, LONG, REPEATS, mismatch_bucket
from lade.memory.row import MATCH, OWN_MATCH
from lade.memory.rowmemory import RowMemory
from lade.memory.stages import MISMATCH, MISMATCHES, OWN

pytestmark = pytest.mark.usefixtures("as_python")

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=24)


def match_of(memory: RowMemory) -> tuple[int, int, int]:
    ints = memory.row().ints
    return int(ints[MATCH + END]), int(ints[MATCH + LENGTH]), int(ints[MATCH + BEFORE])


def in_tree(memory: RowMemory, path: Sequence[int]) -> tuple[int, ...]:
    node = place(memory, path)
    return tuple(nodes_of(memory, node + 1)[node, OWN_MATCH : OWN_MATCH + 3].tolist())


@given(text=TEXTS, more=TEXTS)
@settings(max_examples=150)
def test_what_matches_stood_there(text: list[int], more: list[int]) -> None:
    """The longest repeated suffix, or a match as long as it behind one token that differs."""
    memory = memory_of(text)
    for token in more:
        write(memory, [token])
        text = [*text, token]
        (end, length, before), longest, size = match_of(memory), longest_repeated(text), len(text)
        if end < 0:
            assert longest < REPEATS.shortest
            continue
        assert text[end - length : end] == text[size - length :]
        if before == 0:
            assert length == longest >= REPEATS.shortest
        else:
            assert text[end - length - 1] != text[size - length - 1]
            assert before >= REPEATS.shortest
            assert longest <= length or longest < REPEATS.shortest


def test_a_match_goes_on_behind_one_token_that_differs() -> None:
    """0 1 2 3 4 5 6 is copied as 0 1 2 9 4 5 6."""
    memory = memory_of([0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2])
    assert (match_of(memory), in_tree(memory, [9])) == ((3, 3, 0), (4, 0, 3))
    assert in_tree(memory, [9, 4]) == (5, 1, 3)
    for token, found, bucket in ((9, (4, 0, 3), 0), (4, (5, 1, 3), 2), (5, (6, 2, 3), 3)):
        write(memory, [token])
        place(memory)
        assert match_of(memory) == found
        assert predicted(memory, OWN)[1] == []
        assert predicted(memory, MISMATCH) == (bucket, [found[0]], [1.0])


def test_a_second_mismatch_ends_it() -> None:
    memory = memory_of([0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2])
    assert in_tree(memory, [9, 8]) == (-1, 0, 0)
    write(memory, [9, 8])
    assert match_of(memory) == (-1, 0, 0)


def test_a_mismatch_behind_two_tokens_is_read_on_behind_too() -> None:
    """0 1 2 3 4 5 6 is copied as 0 1 2 9 4 5 9; what counts is the longest of the matches before."""
    memory = memory_of([0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2])
    assert in_tree(memory, [9, 4, 5]) == (6, 2, 3)
    assert in_tree(memory, [9, 4, 5, 8]) == (7, 0, 3)


def test_a_longer_match_replaces_one_with_a_mismatch() -> None:
    memory = memory_of([5, 6, 8, 0, 1, 2, 3, 4, 7, 0, 1, 2, 5])
    assert match_of(memory) == (7, 0, 3)
    assert in_tree(memory, [6]) == (2, 2, 0)
    write(memory, [6])
    assert match_of(memory) == (2, 2, 0)


def test_nothing_goes_on_past_the_end_of_a_text_without_repetition() -> None:
    memory = memory_of([1, 2, 3])
    assert in_tree(memory, [1, 2, 3]) == (3, 3, 0)
    place(memory, [1, 2, 3])
    assert predicted(memory, OWN, 3)[1] == []
    assert in_tree(memory, [1, 2, 3, 1])[0] == -1


def test_buckets_of_mismatches() -> None:
    assert [mismatch_bucket(0, before) for before in (2, LONG - 1, LONG, 40)] == [0, 0, 1, 1]
    assert [mismatch_bucket(length, 2) for length in (1, 2, 3, 4, 7, 8, 99)] == [2, 3, 3, 4, 4, 5, MISMATCHES - 1]
    assert all(after - before in (0, 1) for before, after in pairwise(mismatch_bucket(n, 2) for n in range(1, 50)))
