"""Memory that machine code works in, cut into arrays: as numbers, and as their bits."""

from __future__ import annotations

from functools import partial
from itertools import accumulate

import numpy as np
import torch

from lade.base.buffers import GrowingBuffers
from lade.target.fused.layerarrays import Room

VECTOR = 16  # float32 of a vector; one that crosses lines of the cache takes longer to load


class Rooms:
    """Rooms in one memory, of which one is used at a time. How each was cut is kept, since that takes longer than a
    small loop does.

    Args:
        short: whether bits are those of bfloat16; those of float32 are the numbers' own.
    """

    def __init__(self, short: bool) -> None:
        self._buffers = GrowingBuffers(partial(_memory, short), 1)
        self._memory = self._buffers.of(1)
        self._cut: dict[tuple[int, ...], tuple[Room, Room]] = {}

    def of(self, *sizes: int) -> tuple[Room, Room]:
        """Arrays of these sizes, as numbers and as bits, each of which begins where a vector may."""
        found = self._cut.get(sizes)
        if found is None:
            *begins, end = accumulate((-(-size // VECTOR) * VECTOR for size in sizes), initial=0)
            memory = self._buffers.of(end)
            if memory is not self._memory:
                self._cut, self._memory = {}, memory
            spans = [slice(begin, begin + size) for begin, size in zip(begins, sizes, strict=True)]
            numbers, bits = (Room(*[part[span] for span in spans]) for part in memory)
            found = self._cut[sizes] = numbers, bits
        return found


def _memory(short: bool, numbers: int) -> tuple[np.ndarray, np.ndarray]:
    """So many float32, which begin where a vector of the processor may, and as many bits."""
    floats = torch.empty(numbers, dtype=torch.float32, device="cpu").numpy()
    return floats, np.empty(numbers, np.uint16) if short else floats.view(np.uint32)
