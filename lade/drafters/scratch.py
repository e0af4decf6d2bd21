"""The arrays that learning works in, a part of them for each thread."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lade.base.compiled import compiled
from lade.memory.evidence import SCRATCH_FLOATS, SCRATCH_INTS
from lade.memory.hashing import Array


class Scratch(NamedTuple):
    """Of each thread what `lade.memory.mixture.weigh` works in, then what `lade.memory.recent` does.

    Attributes:
        tokens: [threads SCRATCH_INTS] int32.
        masses: [threads SCRATCH_FLOATS] float64.
        sums: [threads 2 slots] int32.
        sum_masses: [threads slots] float64.
    """

    tokens: Array
    masses: Array
    sums: Array
    sum_masses: Array


def new_scratch(threads: int, slots: int) -> Scratch:
    """For so many threads, with so many slots each (`lade.memory.recent.slots_for`)."""
    found = np.zeros(threads * SCRATCH_INTS, np.int32), np.zeros(threads * SCRATCH_FLOATS)
    return Scratch(*found, np.zeros(2 * threads * slots, np.int32), np.zeros(threads * slots))


@compiled
def scratch_of(scratch: Scratch, thread: int) -> Scratch:
    """A thread's part."""
    slots = len(scratch.sum_masses) // (len(scratch.tokens) // SCRATCH_INTS)
    return Scratch(
        scratch.tokens[thread * SCRATCH_INTS : (thread + 1) * SCRATCH_INTS],
        scratch.masses[thread * SCRATCH_FLOATS : (thread + 1) * SCRATCH_FLOATS],
        scratch.sums[2 * thread * slots : 2 * (thread + 1) * slots],
        scratch.sum_masses[thread * slots : (thread + 1) * slots],
    )
