"""Memory to work in is cut once for each list of sizes, and never from memory of before."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade.target.fused.layerarrays import Room
from lade.target.fused.rooms import Rooms

SIZES = st.integers(0, 40)


@pytest.mark.parametrize("short", [False, True])
@given(wanted=st.lists(st.tuples(*[SIZES] * len(Room._fields)), min_size=1, max_size=6))
def test_arrays_are_of_one_memory(short: bool, wanted: list[tuple[int, ...]]) -> None:
    rooms = Rooms(short)
    for sizes in wanted:
        found = rooms.of(*sizes)
        assert rooms.of(*sizes) is found
        for part, memory in zip(found, rooms._buffers.of(1), strict=True):
            assert [len(array) for array in part] == list(sizes)
            assert all(np.shares_memory(array, memory) for array in part if len(array))
            for number, array in enumerate(part):
                array[:] = number
            assert all((array == number).all() for number, array in enumerate(part))
