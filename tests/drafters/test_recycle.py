"""Recycled predictions: newest for long contexts, averaged for single tokens, bounded, found by every length."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade.drafters.recycle import CAPACITY, LENGTHS, MIXING, PredictionTable

CONTEXTS = st.lists(st.integers(0, 4), min_size=1, max_size=6).map(tuple)
LESSONS = st.lists(st.tuples(CONTEXTS, st.integers(10, 99)), max_size=60)


def taught(*lessons: tuple[tuple[int, ...], int], top: int = 4, capacity: int = CAPACITY) -> PredictionTable:
    """A table that was told, of each context, one token with probability one half."""
    table = PredictionTable(top, capacity)
    for context, token in lessons:
        table.learn(context, [token], [0.5])
    return table


def test_nothing_is_known_at_first() -> None:
    assert PredictionTable(4).lookup((1, 2, 3, 4)) == [None] * len(LENGTHS)
    assert len(PredictionTable(4)) == 0


def test_a_prediction_is_found_by_every_length_of_context() -> None:
    table = PredictionTable(2)
    table.learn((9, 1, 2, 3, 4), [7, 8, 6], [0.5, 0.25, 0.125])
    entry = ([7, 8], [0.5, 0.25], 1)
    assert table.lookup((1, 2, 3, 4)) == table.lookup((0, 0, 1, 2, 3, 4)) == [entry] * 4
    assert table.lookup((0, 2, 3, 4)) == [None, entry, entry, entry]
    assert table.lookup((4, 3, 2, 4)) == [None, None, None, entry]
    assert table.lookup((2, 3, 4, 1)) == [None] * 4
    assert len(table) == 4


def test_a_short_context_teaches_and_finds_short_lengths_only() -> None:
    table = taught(((3, 4), 7))
    assert table.lookup((3, 4)) == table.lookup((1, 2, 3, 4)) == [None, None, ([7], [0.5], 1), ([7], [0.5], 1)]
    assert taught(((1, 2, 3, 4), 7)).lookup((4,)) == [None, None, None, ([7], [0.5], 1)]


def test_long_contexts_take_the_newest_prediction_whole() -> None:
    table = taught(((1, 2, 3, 4), 7), ((1, 2, 3, 4), 8))
    assert table.lookup((1, 2, 3, 4))[:-1] == [([8], [0.5], 2)] * 3


def test_single_tokens_average() -> None:
    table = PredictionTable(3)
    table.learn((1,), [7, 8], [0.6, 0.4])
    table.learn((1,), [8, 9], [0.8, 0.1])
    tokens, probabilities, times = table.lookup((1,))[-1] or pytest.fail("forgotten")
    assert (tokens, times) == ([8, 7, 9], 2)
    assert probabilities == pytest.approx([0.6, 0.3, 0.05])


def test_the_average_keeps_its_likeliest_tokens() -> None:
    table = PredictionTable(2)
    table.learn((1,), [7, 8], [0.5, 0.3])
    table.learn((1,), [7, 9], [0.5, 0.4])
    assert table.lookup((1,))[-1] == ([7, 9], [0.5, 0.2], 2)


def test_the_average_follows_what_is_new() -> None:
    """The second of two predictions counts one half, the fiftieth still as much as `MIXING`."""
    table = taught(*[((1,), 7)] * 49, ((1,), 8))
    tokens, probabilities, times = table.lookup((1,))[-1] or pytest.fail("forgotten")
    assert (tokens, times) == ([7, 8], 50)
    assert probabilities == pytest.approx([0.5 * (1 - MIXING), 0.5 * MIXING])


def test_the_context_that_was_seen_longest_ago_is_forgotten_first() -> None:
    table = taught(((1,), 7), ((2,), 7), ((1,), 7), ((3,), 7), capacity=2)
    assert [table.lookup((token,))[-1] is not None for token in (1, 2, 3)] == [True, False, True]


def test_looking_up_does_not_keep_a_context_alive() -> None:
    table = taught(((1,), 7), ((2,), 7), capacity=2)
    table.lookup((1,))
    table.learn((3,), [7], [0.5])
    assert table.lookup((1,))[-1] is None


def test_lists_that_are_changed_later_change_nothing() -> None:
    table, tokens, probabilities = PredictionTable(2), [7, 8], [0.5, 0.25]
    table.learn((1, 2), tokens, probabilities)
    tokens[0], probabilities[0] = 9, 0.0
    assert table.lookup((1, 2))[-1] == ([7, 8], [0.5, 0.25], 1)


@given(LESSONS, st.integers(1, 5), CONTEXTS)
def test_against_a_list_of_everything_that_was_learned(
    lessons: list[tuple[tuple[int, ...], int]], capacity: int, context: tuple[int, ...]
) -> None:
    table = taught(*lessons, capacity=capacity)
    for length, found in zip(LENGTHS, table.lookup(context), strict=True):
        keys = [known[-length:] for known, _ in lessons if len(known) >= length]
        recent = list(dict.fromkeys(reversed(keys)))[:capacity]  # an evicted one has to come again, as the newest
        assert len(table.tables[length]) == len(recent)
        assert (found is not None) == (context[-length:] in recent and len(context) >= length)
        if found is not None and length > 1:
            assert found[0] == [[token for known, token in lessons if known[-length:] == context[-length:]][-1]]


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=8), min_size=1, max_size=20), st.integers(1, 8))
def test_averages_are_probabilities_in_descending_order(lessons: list[list[float]], top: int) -> None:
    table = PredictionTable(top)
    for number, weights in enumerate(lessons):
        scale = max(1.0, sum(weights))
        table.learn((1,), [number % 3 + i for i in range(len(weights))], sorted(w / scale for w in weights)[::-1])
    tokens, probabilities, times = table.lookup((1,))[-1] or pytest.fail("forgotten")
    assert times == len(lessons)
    assert len(tokens) == len(set(tokens)) == len(probabilities) <= top
    assert probabilities == sorted(probabilities, reverse=True)
    assert 0 <= sum(probabilities) <= 1 + 1e-9
