"""Recycled predictions against dicts of two generations: averaged, the newest of long contexts counting most."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rowarrays import Entry, end_step, learn, padded

from lade.base.compiled import viewed
from lade.config.settings import CAPACITY
from lade.memory import table as table_module
from lade.memory.context import CONTEXT, LENGTHS, NOTHING
from lade.memory.predictions import AVERAGED, CONTEXTS, RECYCLING, TOKENS, TOP, WIDTH, find_prediction
from lade.memory.table import PredictionTable

pytestmark = pytest.mark.usefixtures("as_python")

Context = tuple[int, ...]
OBSERVATIONS = st.lists(st.tuples(st.tuples(*[st.integers(0, 2)] * CONTEXT), st.integers(10, 16)), max_size=20)
STEPS = st.lists(OBSERVATIONS.filter(bool), max_size=4)
CAPACITIES = st.integers(1, 9)


@pytest.fixture(scope="module", autouse=True)
def _small_at_first() -> Iterator[None]:
    """The arrays of tables grow from the first context on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_module, "FIRST", 1)
        yield


def taught(*observations: tuple[Context, int], capacity: int = CAPACITY) -> PredictionTable:
    """A table that was told, of each context, one token with probability one half, one in each step."""
    table = PredictionTable(capacity)
    for context, token in observations:
        learn(table, context, ([token], [0.5]))
        end_step(table)
    return table


def lookup(table: PredictionTable, length: int, context: Context) -> Entry:
    """What is known after the last tokens of a context."""
    row = find_prediction(viewed(table.ints), *padded(context), length)
    begin = table.ints[CONTEXTS] + row * WIDTH + TOKENS
    tokens = [token for token in table.ints[begin : begin + TOP].tolist() if token >= 0] if row >= 0 else []
    return tokens, table.masses[row * TOP :][: len(tokens)].tolist()


def found(table: PredictionTable, *context: int) -> dict[int, Entry]:
    """What is known after a context, by how many tokens of it count."""
    said = {length: lookup(table, length, context) for length in LENGTHS}
    return {length: entry for length, entry in said.items() if entry[0]}


def after_one(*entries: Entry) -> tuple[list[int], list[float], int]:
    """The average of what followed one token, and of how many predictions."""
    table = PredictionTable()
    for entry in entries:
        learn(table, (0, 0, 0, 1), entry)
    ((row,), _) = table.rows(1)
    tokens, probabilities = found(table, 1)[1]
    return [*tokens], [*probabilities], int(row[AVERAGED])


class Generations:
    """The definition: of each length the contexts of the young and the old generation, with their averages."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.young: dict[int, dict[Context, tuple[dict[int, float], int]]] = {length: {} for length in LENGTHS}
        self.old: dict[int, dict[Context, tuple[dict[int, float], int]]] = {length: {} for length in LENGTHS}

    def learn(self, context: Context, token: int) -> None:
        for length in LENGTHS:
            key = context[-length:]
            before, count = self.young[length].get(key) or self.old[length].get(key) or ({}, 0)
            newest = RECYCLING.newest if length == 1 else RECYCLING.newest_of_several
            share = max(newest, 1 / (count + 1))
            mixed = {known: mass * (1 - share) for known, mass in before.items()}
            mixed[token] = mixed.get(token, 0.0) + share / 2
            self.young[length][key] = mixed, count + 1
            self.old[length].pop(key, None)

    def forget(self) -> None:
        for length in LENGTHS:
            if 2 * len(self.young[length]) >= self.capacity:
                self.old[length], self.young[length] = self.young[length], {}

    def known(self, length: int) -> dict[Context, dict[int, float]]:
        return {key: mixed for key, (mixed, _) in (self.old[length] | self.young[length]).items()}


def contents(table: PredictionTable, length: int) -> dict[Context, dict[int, float]]:
    """All contexts of a length with what is looked up after them."""
    rows, _ = table.rows(length)
    keys = [tuple(row[CONTEXT - length : CONTEXT].tolist()) for row in rows]
    assert len(set(keys)) == len(keys)
    return {key: dict(zip(*lookup(table, length, key), strict=True)) for key in keys}


@given(STEPS, CAPACITIES)
def test_what_is_known_is_what_two_generations_of_dicts_know(
    steps: list[list[tuple[Context, int]]], capacity: int
) -> None:
    table, oracle = PredictionTable(capacity), Generations(capacity)
    for step in steps:
        for context, token in step:
            learn(table, context, ([token], [0.5]))
            oracle.learn(context, token)
        end_step(table)
        oracle.forget()
    for length in LENGTHS:
        known, expected = contents(table, length), oracle.known(length)
        assert known.keys() == expected.keys()
        assert all(known[key] == pytest.approx(expected[key], rel=1e-5) for key in known)
        assert table.young(length) == len(oracle.young[length])
    assert len(table) == sum(len(oracle.known(length)) for length in LENGTHS)


def test_nothing_is_known_at_first() -> None:
    assert found(PredictionTable(4), 1, 2, 3, 4) == {}
    assert len(PredictionTable(4)) == 0


def test_a_prediction_is_found_by_every_length_of_context() -> None:
    table, entry = PredictionTable(), ([7, 8], [0.5, 0.25])
    learn(table, (1, 2, 3, 4), entry)
    assert found(table, 1, 2, 3, 4) == dict.fromkeys(LENGTHS, entry)
    assert found(table, 0, 2, 3, 4) == dict.fromkeys((3, 2, 1), entry)
    assert found(table, 4, 3, 2, 4) == {1: entry}
    assert found(table, 2, 3, 4, 1) == {}
    assert len(table) == len(LENGTHS)


def test_the_beginning_of_a_text_is_no_token() -> None:
    table = taught((padded((3, 4)), 7))
    assert list(found(table, 3, 4)) == [4, 3, 2, 1]
    assert list(found(table, 1, 2, 3, 4)) == [2, 1]
    assert list(found(taught(((1, 2, 3, 4), 7)), 4)) == [1]
    assert NOTHING in table.rows(4)[0][0]


def test_single_tokens_average() -> None:
    tokens, probabilities, times = after_one(([7, 8], [0.6, 0.4]), ([8, 9], [0.8, 0.1]))
    assert (tokens, times) == ([8, 7, 9], 2)
    assert probabilities == pytest.approx([0.6, 0.3, 0.05])


def test_the_newest_prediction_after_several_tokens_counts_most() -> None:
    table = PredictionTable()
    for token in (7, 8):
        learn(table, (1, 2, 3, 4), ([token], [0.5]))
    newest = RECYCLING.newest_of_several
    for length in (4, 3, 2):
        tokens, probabilities = found(table, 1, 2, 3, 4)[length]
        assert (tokens, probabilities) == ([8, 7], pytest.approx([0.5 * newest, 0.5 * (1 - newest)]))


def test_the_average_keeps_its_likeliest_tokens() -> None:
    eight = [*range(TOP)], [0.5, *[0.07] * (TOP - 2), 0.02]
    tokens, probabilities, times = after_one(eight, ([0, 90, 91], [0.5, 0.06, 0.01]))
    assert (tokens, times) == ([*range(TOP - 1), 90], 2)
    assert probabilities == pytest.approx([0.5, *[0.035] * (TOP - 2), 0.03])


def averaged(lines: list[tuple[list[int], list[float]]]) -> dict[int, float]:
    """The moving average after one token, of predictions without equal probabilities."""
    known: dict[int, float] = {}
    for count, (tokens, probabilities) in enumerate(lines, 1):
        share = max(RECYCLING.newest, 1 / count)
        line = {token: share * own for token, own in zip(tokens, probabilities, strict=True)}
        known = {token: (1 - share) * mass + line.pop(token, 0.0) for token, mass in known.items()}
        for token, mass in line.items():
            least = min(known, key=known.__getitem__, default=token)
            if len(known) == TOP and known[least] < mass:
                del known[least]
            if len(known) < TOP:
                known[token] = mass
    return known


@given(st.lists(st.integers(1, TOP), min_size=1, max_size=6), st.integers(0, 999))
def test_the_average_is_that_of_a_dict(sizes: list[int], seed: int) -> None:
    noise = np.random.default_rng(seed)
    lines = [
        (noise.permutation(12)[:size].tolist(), np.sort(noise.random(size) / size)[::-1].tolist()) for size in sizes
    ]
    tokens, probabilities, times = after_one(*lines)
    expected = averaged(lines)
    assert times == len(lines)
    assert probabilities == sorted(probabilities, reverse=True)
    assert dict(zip(tokens, probabilities, strict=True)) == pytest.approx(expected, rel=1e-5)


def test_the_average_follows_what_is_new() -> None:
    """The second of two predictions counts one half, the fiftieth still as much as `RecyclingPolicy.newest`."""
    tokens, probabilities, times = after_one(*[([7], [0.5])] * 49, ([8], [0.5]))
    assert (tokens, times) == ([7, 8], 50)
    assert probabilities == pytest.approx([0.5 * (1 - RECYCLING.newest), 0.5 * RECYCLING.newest])


def test_looking_up_does_not_keep_a_context_alive() -> None:
    table = taught(((1, 1, 1, 1), 7), capacity=2)
    assert found(table, 1, 1, 1, 1)
    learn(table, (2, 2, 2, 2), ([7], [0.5]))
    end_step(table)
    assert not found(table, 1, 1, 1, 1)


@given(OBSERVATIONS, CAPACITIES, CAPACITIES)
def test_the_capacity_bounds_what_is_known(
    observations: list[tuple[Context, int]], capacity: int, smaller: int
) -> None:
    table = taught(*observations, capacity=capacity)
    assert all(len(table.rows(length)[0]) <= capacity for length in LENGTHS)
    before = [contents(table, length) for length in LENGTHS]
    table.resize(max(capacity, smaller))
    assert [contents(table, length) for length in LENGTHS] == before  # all of it fits
    table.resize(smaller)
    after = [contents(table, length) for length in LENGTHS]
    for known, kept in zip(before, after, strict=True):
        assert min(len(known), (smaller + 1) // 2) <= len(kept) <= smaller
        assert kept.items() <= known.items()


@given(OBSERVATIONS, CAPACITIES)
def test_a_smaller_capacity_keeps_what_came_last(observations: list[tuple[Context, int]], capacity: int) -> None:
    """Of contexts that were learned once each."""
    first = dict(reversed(observations))
    ordered = [*reversed(first.items())]
    table = taught(*ordered)
    table.resize(capacity)
    assert contents(table, 4).keys() == {context for context, _ in ordered[-capacity:]}


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=TOP), min_size=1, max_size=8))
def test_averages_are_probabilities_in_descending_order(observations: list[list[float]]) -> None:
    entries: list[Entry] = []
    for number, weights in enumerate(observations):
        scale = max(1.0, sum(weights))
        entries.append(([number % 3 + i for i in range(len(weights))], sorted(w / scale for w in weights)[::-1]))
    tokens, probabilities, times = after_one(([99], [1.0]), *entries)
    assert times == len(observations) + 1
    assert len(tokens) == len(set(tokens)) == len(probabilities) <= TOP
    assert probabilities == sorted(probabilities, reverse=True)
    assert 0 <= sum(probabilities) <= 1 + 1e-6
