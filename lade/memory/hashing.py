"""Open addressing: rows of a table found by the first columns of the row.

A table and its index are regions of one array (`lade.memory.regions`). An index is a power of two of slots, at most
half of them used; a slot holds the number of a row, or -1.
"""

from __future__ import annotations

from typing import Any

from lade.base.compiled import compiled

Array = Any  # a numpy array as machine code, a memoryview as Python

MASK = 0xFFFFFFFF
FACTOR, SPREAD = 0x9E3779B1, 0x85EBCA6B  # odd numbers of 32 bits without a pattern
LEAST = 64  # slots


def slots_for(rows: int) -> int:
    """Slots of an index for so many rows."""
    slots = LEAST
    while slots < 2 * rows:
        slots *= 2
    return slots


@compiled
def mixed(code: int, key: int) -> int:
    """A hash of 32 bits that goes on with one more key."""
    code = ((code ^ (key & MASK)) * FACTOR) & MASK
    return code ^ (code >> 15)


@compiled
def hashed(first: int, second: int, third: int, last: int) -> int:
    """A hash of four tokens."""
    return mixed(mixed(mixed(mixed(SPREAD, first), second), third), last)


@compiled
def context_slot(
    ints: Array, index: int, slots: int, rows: int, width: int, first: int, second: int, third: int, last: int
) -> int:
    """The place of the slot of the row whose first columns are these four tokens, or of the free one for it.

    Args:
        index, rows: where the index and the table begin.
        width: columns of the table.
    """
    slot = hashed(first, second, third, last) & (slots - 1)
    while True:
        row = ints[index + slot]
        if row < 0:
            return index + slot
        row = rows + row * width
        if ints[row + 3] == last and ints[row + 2] == third and ints[row + 1] == second and ints[row] == first:
            return index + slot
        slot = (slot + 1) & (slots - 1)


@compiled
def pair_slot(ints: Array, index: int, slots: int, rows: int, width: int, first: int, second: int) -> int:
    """The same for a key of two columns."""
    slot = mixed(mixed(SPREAD, first), second) & (slots - 1)
    while True:
        row = ints[index + slot]
        if row < 0:
            return index + slot
        row = rows + row * width
        if ints[row + 1] == second and ints[row] == first:
            return index + slot
        slot = (slot + 1) & (slots - 1)


@compiled
def index_rows(ints: Array, index: int, slots: int, rows: int, width: int, number: int, pairs: bool) -> None:
    """Enter the first rows of a table into its index anew, by two columns or by four."""
    for slot in range(index, index + slots):
        ints[slot] = -1
    for row in range(number):
        at = rows + row * width
        if pairs:
            slot = pair_slot(ints, index, slots, rows, width, ints[at], ints[at + 1])
        else:
            slot = context_slot(ints, index, slots, rows, width, ints[at], ints[at + 1], ints[at + 2], ints[at + 3])
        ints[slot] = row
