"""The k largest of a row of logits, found in the groups whose largest logit is no less than the k-th largest of these.

Loops that run as machine code (`lade.base.compiled`). Of g groups, group j has the logits j, j + g, j + 2 g ...
(`lade.core.topk.depth_of_groups`).
"""

from __future__ import annotations

from math import inf
from typing import Any

from lade.base.compiled import compiled
from lade.base.lanes import float_at
from lade.base.searching import at_least, lowest_bit

Array = Any  # of numbers: a numpy array, or its memoryview

LANES = 16  # numbers that are compared at once


@compiled
def find_largest(
    own: Array, groups: int, depth: int, within: int, maxima: Array, values: Array, best: Array, largest: Array
) -> int:
    """The k largest logits and their ids.

    Args:
        own: bits of the logits.
        within: the ids below this one are searched.
        maxima: the largest logit of each group; -inf afterwards where the group was searched.
        values: the logits of the groups searched and those of no group are written here.
        best, largest: ids and logits are written here; of equal logits the lowest id is first.

    Returns:
        The number of values.
    """
    least, number = kth_largest(maxima, groups, largest), 0
    for rank in range(len(best)):
        best[rank], largest[rank] = within, -inf
    for begin in range(0, groups, LANES):
        bits = large(maxima, begin, groups, least)
        while bits:
            number = search(own, begin + lowest_bit(bits), groups, depth, least, maxima, values, number, best, largest)
            bits &= bits - 1
    for at in range(groups * depth, within):
        value = float_at(own, at)
        values[number] = value
        number += 1
        if value >= least:
            insert(best, largest, at, value)
    return number


@compiled
def kth_largest(maxima: Array, groups: int, largest: Array) -> Any:
    """The k-th largest of the maxima; -inf if there are fewer. `largest` has room for k."""
    last = len(largest) - 1
    for rank in range(last + 1):
        largest[rank] = -inf
    for begin in range(0, groups, LANES):
        bits = large(maxima, begin, groups, largest[last])
        while bits:
            value = maxima[begin + lowest_bit(bits)]
            bits &= bits - 1
            if value > largest[last]:
                rank = last
                while rank > 0 and largest[rank - 1] < value:
                    largest[rank] = largest[rank - 1]
                    rank -= 1
                largest[rank] = value
    return largest[last]


@compiled
def large(numbers: Array, begin: int, end: int, least: Any) -> int:
    """Which of the first `LANES` numbers from a place on, or of those before `end`, are at least so large, as bits."""
    if begin + LANES <= end:
        return at_least(numbers, begin, least, LANES)
    bits = 0
    for place in range(begin, end):
        if numbers[place] >= least:
            bits |= 1 << (place - begin)
    return bits


@compiled
def search(
    own: Array,
    group: int,
    groups: int,
    depth: int,
    least: Any,
    maxima: Array,
    values: Array,
    number: int,
    best: Array,
    largest: Array,
) -> int:
    """Insert the logits of a group that are at least so large; arguments as of `find_largest`.

    Args:
        number: of the values so far.

    Returns:
        Their number with those of the group.
    """
    maxima[group] = -inf
    found = values[number : number + depth]
    for rank in range(depth):  # without a branch, so that the loads overlap
        found[rank] = float_at(own, group + rank * groups)
    for begin in range(0, depth, LANES):
        bits = large(found, begin, depth, least)
        while bits:
            rank = begin + lowest_bit(bits)
            insert(best, largest, group + rank * groups, found[rank])
            bits &= bits - 1
    return number + depth


@compiled
def insert(best: Array, largest: Array, token: int, value: Any) -> None:
    """Insert a logit into the k largest, by value and id; the last one drops out, which may be this one."""
    rank = len(best)
    while rank > 0 and (largest[rank - 1] < value or (largest[rank - 1] == value and best[rank - 1] > token)):
        if rank < len(best):
            best[rank], largest[rank] = best[rank - 1], largest[rank - 1]
        rank -= 1
    if rank < len(best):
        best[rank], largest[rank] = token, value
