"""What attention of some queries to one head's keys and values has in common, as loops that run as machine code.

Numbers are bits, as of `lade.base.bits`; sums are float32. K keys of a row; D head size.
"""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

import numpy as np

from lade.base.bits import rounded
from lade.base.compiled import compiled
from lade.base.lanes import multiply_lanes

Array = Any  # of numbers: a numpy array, or its memoryview

# Of a row, in its line of the table: nodes of the rows before it, and its own; its first key in the buffers and its
# number of keys; the part of them that all nodes see, from one key to another; where it begins in `visible`.
FIRST, NODES, BEGIN, KEYS, SEEN, PREFIX, VISIBLE = range(7)
WIDTH = 7
TILE = 64  # keys that are looked at together
WIDE, HALF, NARROW = 64, 32, 16  # numbers of a head that are summed together


class Heads(NamedTuple):
    """H, G and D, and the numbers from one head's keys or values to the next one's."""

    stored: int
    group: int
    size: int
    step: int


class Side(NamedTuple):
    """What the queries of one row attend to in one head.

    Attributes:
        keys, values: [K, D]
        row: its line of the table.
        visible: of all rows, as of `lade.target.rowloops.attend_rows`.
        head: the number of the head.
    """

    keys: Array
    values: Array
    row: Array
    visible: Array
    heads: Heads
    head: int


@compiled
def is_seen(begin: int, keys: int, side: Side, first: int, count: int) -> bool:
    """Whether a query sees one of some keys; arguments as of `hide`."""
    row, group = side.row, side.heads.group
    seen, prefix, end = row[SEEN], row[PREFIX], begin + keys
    if begin < prefix and end > seen:
        return True
    for node in range(first // group, (first + count - 1) // group + 1):
        line = side.visible[row[VISIBLE] + node * (seen + row[KEYS] - prefix) :]
        for key in range(begin, end):
            if line[key if key < seen else seen + key - prefix]:
                return True
    return False


@compiled
def hide(scores: Array, begin: int, keys: int, lanes: int, side: Side, first: int, count: int) -> None:
    """Scores [keys, lanes] of keys that a node does not see become -inf.

    Args:
        begin: the first of the row's keys.
        first, count: the queries whose lanes these are.
    """
    row, group = side.row, side.heads.group
    seen, prefix, end = row[SEEN], row[PREFIX], begin + keys
    for lane in range(count):
        line = side.visible[row[VISIBLE] + (first + lane) // group * (seen + row[KEYS] - prefix) :]
        for key in range(begin, min(end, seen)):
            if not line[key]:
                scores[(key - begin) * lanes + lane] = np.float32(-inf)
        for key in range(max(begin, prefix), end):
            if not line[seen + key - prefix]:
                scores[(key - begin) * lanes + lane] = np.float32(-inf)


@compiled
def mix(
    weights: Array, apart: int, step: int, values: Array, together: int, most: int, size: int, mixed: Array
) -> None:
    """[together, D] sums of values by their weights, which do not depend on other queries."""
    place = 0
    while size - place >= WIDE:
        multiply_lanes(weights, apart, step, values[place:], size, most, mixed[place:], size, together, WIDE)
        place += WIDE
    if size - place >= HALF:
        multiply_lanes(weights, apart, step, values[place:], size, most, mixed[place:], size, together, HALF)
        place += HALF
    if size - place >= NARROW:
        multiply_lanes(weights, apart, step, values[place:], size, most, mixed[place:], size, together, NARROW)
        place += NARROW
    while place < size:
        multiply_lanes(weights, apart, step, values[place:], size, most, mixed[place:], size, together, 1)
        place += 1


@compiled
def tell(sums: Array, weight: Any, side: Side, query: int, short: bool, out: Array) -> None:
    """What a query found, from its sums of values and one over that of its weights."""
    size, group = side.heads.size, side.heads.group
    line = side.heads.stored * group * size
    goal = (side.row[FIRST] + query // group) * line + (side.head * group + query % group) * size
    for place in range(size):
        out[goal + place] = rounded(sums[place] * weight, short)
