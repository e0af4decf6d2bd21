"""What earlier requests left in a pool is told apart from what a request predicted itself."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rowarrays import learn, memory_of, place, predicted, predicted_after

from lade.memory.context import CONTEXT
from lade.memory.pools import fresh_pool
from lade.memory.rowmemory import RowMemory
from lade.memory.stages import KEPT, RECYCLED_1, RECYCLED_4

pytestmark = pytest.mark.usefixtures("as_python")

Context = tuple[int, ...]
TAUGHT = st.lists(st.tuples(*[st.integers(0, 2)] * CONTEXT), max_size=6)


def who_predicts(memory: RowMemory, *context: int) -> dict[int, tuple[int, list[int]]]:
    """By stage of recycled predictions: bucket and tokens."""
    place(memory)
    said = {stage: predicted_after(memory, stage, *context)[:2] for stage in range(RECYCLED_4, KEPT + 1)}
    return {stage: found for stage, found in said.items() if found[1]}


def endings(contexts: Sequence[Context], length: int) -> set[Context]:
    return {context[-length:] for context in contexts}


@given(earlier=TAUGHT, own=TAUGHT, asked=st.tuples(*[st.integers(0, 2)] * CONTEXT))
def test_own_contexts_are_recycled_and_the_longest_of_the_others_is_kept(
    earlier: list[Context], own: list[Context], asked: Context
) -> None:
    pool, expected = fresh_pool(), dict[int, tuple[int, list[int]]]()
    for context in earlier:
        learn(pool.table, context, ([5], [0.5]))
    memory = memory_of([0], pool=pool)
    for context in own:
        learn(pool.table, context, ([5], [0.5]))
    for length in range(CONTEXT, 0, -1):
        if asked[-length:] in endings(own, length):
            expected[RECYCLED_4 + CONTEXT - length] = 0, [5]
        elif asked[-length:] in endings(earlier, length):
            expected.setdefault(KEPT, (length - 1, [5]))
    assert who_predicts(memory, *asked) == expected


def test_what_a_request_predicts_is_kept_for_the_next_one() -> None:
    pool = fresh_pool()
    first = memory_of([0], pool=pool)
    learn(pool.table, (1, 2), ([3, 4], [0.5, 0.25]))
    second = memory_of([0], pool=pool)
    assert RECYCLED_1 in who_predicts(first, 1, 2)
    assert who_predicts(second, 1, 2) == {KEPT: (CONTEXT - 1, [3, 4])}
    learn(pool.table, (9, 2), ([5], [1.0]))
    assert who_predicts(second, 1, 2) == {RECYCLED_1: (0, [5, 3, 4]), KEPT: (CONTEXT - 1, [3, 4])}


def test_a_resized_pool_still_knows_whose_contexts_it_has() -> None:
    pool = fresh_pool()
    learn(pool.table, (1, 2), ([3], [0.5]))
    memory = memory_of([0], pool=pool)
    learn(pool.table, (2, 1), ([4], [0.5]))
    before = [who_predicts(memory, *context) for context in ((1, 2), (2, 1))]
    pool.table.resize(100)
    assert [who_predicts(memory, *context) for context in ((1, 2), (2, 1))] == before
    assert before[0].keys() == {KEPT}
    assert KEPT not in before[1]
    assert pool.table.begin() == 2


def test_a_pool_of_one_request_keeps_nothing() -> None:
    memory = memory_of([1, 2, 1, 2])
    learn(memory.pool.table, (2, 1, 2), ([1], [1.0]))
    place(memory, [1, 2])
    assert all(predicted(memory, KEPT, node)[1] == [] for node in range(3))
