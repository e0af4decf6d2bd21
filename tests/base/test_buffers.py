"""Buffers never shrink, and never claim a size that they do not have."""

import numpy as np
import pytest

from lade.base.buffers import GrowingBuffers


def test_each_size_is_the_largest_that_was_asked_for() -> None:
    made: list[tuple[int, ...]] = []

    def make(*sizes: int) -> np.ndarray:
        made.append(sizes)
        return np.zeros(sizes)

    buffers = GrowingBuffers(make, 1, 1)
    first = buffers.of(2, 5)
    assert first.shape == (2, 5)
    assert buffers.of(1, 4) is first
    assert buffers.of(3, 1).shape == (3, 5)
    assert made == [(1, 1), (2, 5), (3, 5)]


def test_what_could_not_be_made_has_no_room() -> None:
    fails = False

    def make(size: int) -> np.ndarray:
        if fails:
            raise MemoryError
        return np.zeros(size)

    buffers = GrowingBuffers(make, 1)
    fails = True
    with pytest.raises(MemoryError):
        buffers.of(9)
    assert len(buffers.of(1)) == 1
    fails = False
    assert len(buffers.of(9)) == 9
