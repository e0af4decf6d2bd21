"""Regions of one array that grow: whatever their order and the room at first, none loses a number or meets another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade.config.settings import LookaheadConfig
from lade.memory import row
from lade.memory.pools import fresh_pool
from lade.memory.regions import Regions
from lade.memory.rowmemory import NUMBERS, TOKENS, RowMemory

HEADER = 4


@given(st.integers(0, 60), st.lists(st.tuples(st.integers(0, HEADER - 1), st.integers(1, 20)), max_size=20))
def test_regions_keep_their_numbers(room: int, growth: list[tuple[int, int]]) -> None:
    regions, expected, used = Regions(HEADER, room), {field: list[int]() for field in range(HEADER)}, 0
    for step, (field, more) in enumerate(growth):
        held = len(expected[field])
        used += held + more  # a region that grows leaves a gap
        regions.place(field, held + more, held)
        begin = regions.ints[field]
        regions.ints[begin + held : begin + held + more] = step
        expected[field] += [step] * more
        for each, numbers in expected.items():
            begin = regions.ints[each]
            assert regions.ints[begin : begin + len(numbers)].tolist() == numbers
    assert used > room or len(regions.ints) == HEADER + room


@pytest.mark.parametrize("tokens", [1, 2, 10, 33, 100, 257, 600, 1500])
def test_the_tables_of_a_request_are_laid_out_once(tokens: int) -> None:
    text = np.random.default_rng(0).integers(0, 5000, tokens).tolist()
    memory = RowMemory(LookaheadConfig().settled(), text, tokens, fresh_pool())
    assert len(memory.row().ints) == row.HEADER + NUMBERS * (tokens + TOKENS)
