"""Recycled predictions: newest for long contexts, averaged for single tokens, bounded, found by every length."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade.config.settings import CAPACITY
from lade.memory.recycle import CONTEXT, LENGTHS, NOTHING, RECYCLING, Context, Entry, PredictionTable
from lade.memory.sources import FromPredictions

TOKENS = st.integers(0, 2)
CONTEXTS = st.tuples(*[TOKENS] * CONTEXT)
OBSERVATIONS = st.lists(st.tuples(CONTEXTS, st.integers(10, 99)), max_size=60)


def taught(*observations: tuple[Context, int], top: int = 4, capacity: int = CAPACITY) -> PredictionTable:
    """A table that was told, of each context, one token with probability one half, one in each step."""
    table = PredictionTable(top, capacity)
    for context, token in observations:
        table.learn(context, ([token], [0.5]))
        table.forget()
    return table


def found(table: PredictionTable, *context: int) -> dict[int, tuple[Any, Any]]:
    """What is known after a context, by how many tokens of it count."""
    padded: Any = (*[NOTHING] * (CONTEXT - len(context)), *context)
    return {LENGTHS[stage]: (tokens, probs) for stage, _, tokens, probs in FromPredictions(0, table).expect(padded, 0)}


def after_one(*entries: Entry, top: int = 4) -> tuple[list[int], list[float], int]:
    """The average of what followed one token."""
    table = PredictionTable(top)
    for entry in entries:
        table.learn((0, 0, 0, 1), entry)
    return table.young[-1][(1,)]


def test_nothing_is_known_at_first() -> None:
    assert found(PredictionTable(4), 1, 2, 3, 4) == {}
    assert len(PredictionTable(4)) == 0


def test_a_prediction_is_found_by_every_length_of_context() -> None:
    table, entry = PredictionTable(2), ([7, 8], [0.5, 0.25])
    table.learn((1, 2, 3, 4), entry)
    assert list(found(table, 1, 2, 3, 4)) == [4, 3, 2, 1]  # longest context first
    assert found(table, 1, 2, 3, 4) == dict.fromkeys(LENGTHS, entry)
    assert found(table, 0, 2, 3, 4) == dict.fromkeys((3, 2, 1), entry)
    assert found(table, 4, 3, 2, 4) == {1: entry}
    assert found(table, 2, 3, 4, 1) == {}
    assert len(table) == len(LENGTHS)


def test_the_beginning_of_a_text_is_no_token() -> None:
    table = taught(((NOTHING, NOTHING, 3, 4), 7))
    assert list(found(table, 3, 4)) == [4, 3, 2, 1]
    assert list(found(table, 1, 2, 3, 4)) == [2, 1]
    assert list(found(taught(((1, 2, 3, 4), 7)), 4)) == [1]


def test_long_contexts_take_the_newest_prediction_whole() -> None:
    table = taught(((1, 2, 3, 4), 7), ((1, 2, 3, 4), 8))
    assert [found(table, 1, 2, 3, 4)[length] for length in (4, 3, 2)] == [([8], [0.5])] * 3


def test_single_tokens_average() -> None:
    tokens, probabilities, times = after_one(([7, 8], [0.6, 0.4]), ([8, 9], [0.8, 0.1]))
    assert (tokens, times) == ([8, 7, 9], 2)
    assert probabilities == pytest.approx([0.6, 0.3, 0.05])


def test_the_average_keeps_its_likeliest_tokens() -> None:
    assert after_one(([7, 8], [0.5, 0.3]), ([7, 9], [0.5, 0.4]), top=2) == ([7, 9], [0.5, 0.2], 2)


def test_the_average_follows_what_is_new() -> None:
    """The second of two predictions counts one half, the fiftieth still as much as `RecyclingPolicy.newest`."""
    tokens, probabilities, times = after_one(*[([7], [0.5])] * 49, ([8], [0.5]))
    assert (tokens, times) == ([7, 8], 50)
    assert probabilities == pytest.approx([0.5 * (1 - RECYCLING.newest), 0.5 * RECYCLING.newest])


def test_the_average_survives_that_its_half_grows_old() -> None:
    table = taught(((0, 0, 0, 1), 7), ((0, 0, 0, 2), 7), ((0, 0, 0, 1), 8), capacity=4)
    assert table.old[-1].keys() == {(1,), (2,)}
    assert table.young[-1] == {(1,): ([7, 8], [0.25, 0.25], 2)}
    assert found(table, 1)[1] == ([7, 8], [0.25, 0.25])


def test_the_half_that_came_first_is_forgotten() -> None:
    observations = [((token, token, token, token), 7) for token in range(5)]
    known = [[token for token in range(5) if found(taught(*observations[:n], capacity=4), token)] for n in range(6)]
    assert known == [[], [0], [0, 1], [0, 1, 2], [2, 3], [2, 3, 4]]


def test_looking_up_does_not_keep_a_context_alive() -> None:
    table = taught(((1, 1, 1, 1), 7), capacity=2)
    assert found(table, 1, 1, 1, 1)
    table.learn((2, 2, 2, 2), ([7], [0.5]))
    table.forget()
    assert not found(table, 1, 1, 1, 1)


@given(OBSERVATIONS, st.integers(1, 9), CONTEXTS)
def test_long_contexts_against_a_list_of_everything_that_was_learned(
    observations: list[tuple[Context, int]], capacity: int, context: Context
) -> None:
    """What is known is what came last, and the half that came last is known."""
    table = taught(*observations, capacity=capacity)
    after = found(table, *context)
    for length in LENGTHS:
        said = [token for known, token in observations if known[-length:] == context[-length:]]
        newest = list(dict.fromkeys(known[-length:] for known, _ in reversed(observations)))
        assert length in after or context[-length:] not in newest[: (capacity + 1) // 2]
        if length in after and length > 1:
            assert after[length] == ([said[-1]], [0.5])


@given(st.lists(OBSERVATIONS.filter(bool), max_size=6), st.integers(1, 9), st.integers(1, 9))
def test_the_capacity_bounds_all_but_what_a_step_learned(
    steps: list[list[tuple[Context, int]]], capacity: int, smaller: int
) -> None:
    table = PredictionTable(4, capacity)
    for step in steps:
        for context, token in step:
            table.learn(context, ([token], [0.5]))
        table.forget()
        for old, young in zip(table.old, table.young, strict=True):
            assert len(young) < (capacity + 1) // 2
            assert len(old) + len(young) < capacity + max(map(len, steps))
    table.resize(smaller)
    assert table.capacity == smaller
    assert all(len(old) + len(young) <= smaller for old, young in zip(table.old, table.young, strict=True))


@given(OBSERVATIONS, st.integers(1, 9))
def test_the_capacity_bounds_steps_of_one_observation(observations: list[tuple[Context, int]], capacity: int) -> None:
    table = taught(*observations, capacity=capacity)
    assert all(len(old) + len(young) <= capacity for old, young in zip(table.old, table.young, strict=True))


@given(OBSERVATIONS, st.integers(1, 9), CONTEXTS)
def test_another_capacity_changes_nothing_that_fits(
    observations: list[tuple[Context, int]], capacity: int, context: Context
) -> None:
    table = taught(*observations, capacity=capacity)
    before = found(table, *context)
    table.resize(capacity)
    assert found(table, *context) == before
    table.resize(1000)
    assert found(table, *context) == before


@given(OBSERVATIONS, st.integers(1, 9))
def test_a_smaller_capacity_keeps_what_came_last(observations: list[tuple[Context, int]], capacity: int) -> None:
    table = taught(*observations)
    table.resize(capacity)
    keys = list(dict.fromkeys(context for context, _ in observations))
    kept = {*table.old[0], *table.young[0]}
    assert kept == set(keys[-capacity:])


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=8), min_size=1, max_size=20), st.integers(1, 8))
def test_averages_are_probabilities_in_descending_order(observations: list[list[float]], top: int) -> None:
    entries = []
    for number, weights in enumerate(observations):
        scale = max(1.0, sum(weights))
        entries.append(([number % 3 + i for i in range(len(weights))], sorted(w / scale for w in weights)[::-1]))
    tokens, probabilities, times = after_one(([99], [1.0]), *entries, top=top)
    assert times == len(observations) + 1
    assert len(tokens) == len(set(tokens)) == len(probabilities) <= top
    assert probabilities == sorted(probabilities, reverse=True)
    assert 0 <= sum(probabilities) <= 1 + 1e-9
