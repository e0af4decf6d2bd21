"""Attention of few queries to one head's keys and values, as a loop that runs as machine code. All scores are kept.

Numbers are bits, as of `lade.base.bits`; sums are float32. K keys of a row; D head size.
"""

from __future__ import annotations

from math import nan
from typing import Any

import numpy as np

from lade.base.bits import number, rounded
from lade.base.compiled import compiled, reordering
from lade.base.softmax import exponential
from lade.target.queryloops import KEYS, NODES, TILE, Side, hide, mix, tell

Array = Any  # of numbers: a numpy array, or its memoryview

FEW = 4  # queries


@compiled
def attend_few(queries: Array, side: Side, scaling: Any, short: bool, scratch: Array, out: Array) -> None:
    """Attention of at most `FEW` queries."""
    size, most, count = side.heads.size, side.row[KEYS], side.row[NODES] * side.heads.group
    given, mixed = scratch[: FEW * size], scratch[FEW * size : 2 * FEW * size]
    factors, scores = scratch[2 * FEW * size :], scratch[2 * FEW * size + FEW :]
    for place in range(count * size):
        given[place] = np.float32(number(queries[place], short) * scaling)
    for begin in range(0, most, TILE):
        for each in range(count):
            own = scores[each * most + begin :]
            score_one(given[each * size :], side.keys[begin * size :], min(TILE, most - begin), size, short, own)
    for each in range(count):
        own = scores[each * most : each * most + most]
        hide(own, 0, most, 1, side, each, 1)
        factors[each] = to_weights(own, short)
    mix(scores, most, 1, side.values, count, most, size, mixed)
    for each in range(count):
        tell(mixed[each * size :], factors[each], side, each, short, out)


@reordering
def score_one(query: Array, keys: Array, most: int, size: int, short: bool, scores: Array) -> None:
    """Products of one query and keys, four keys at a time, as they lie."""
    whole = most - most % 4
    for key in range(0, whole, 4):
        begin = key * size
        first, second = keys[begin : begin + size], keys[begin + size : begin + 2 * size]
        third, fourth = keys[begin + 2 * size : begin + 3 * size], keys[begin + 3 * size : begin + 4 * size]
        a = b = c = d = np.float32(0.0)
        for place in range(size):
            value = query[place]
            a += np.float32(value * number(first[place], short))
            b += np.float32(value * number(second[place], short))
            c += np.float32(value * number(third[place], short))
            d += np.float32(value * number(fourth[place], short))
        scores[key], scores[key + 1], scores[key + 2], scores[key + 3] = a, b, c, d
    for key in range(whole, most):
        a = np.float32(0.0)
        for place in range(size):
            a += np.float32(query[place] * number(keys[key * size + place], short))
        scores[key] = a


@reordering
def to_weights(scores: Array, short: bool) -> Any:
    """exp of the differences to the largest one, in place, rounded where PyTorch's attention rounds them.

    Returns:
        One over their sum; NaN where a score is NaN, or the largest is infinite.
    """
    largest, total, not_finite = np.float32(scores[0]), np.float32(0.0), False
    for value in scores:
        largest = value if value > largest else largest
    for place in range(len(scores)):
        distance = np.float32(scores[place] - largest)
        not_finite |= distance != distance
        weight = exponential(distance)
        scores[place] = number(rounded(weight, short), short)
        total += weight
    return np.float32(np.float32(nan) if not_finite else np.float32(1.0) / np.float32(total))


def numbers_for_few(keys: int, size: int) -> int:
    """How many numbers one thread must have to work in, for at most so many keys."""
    return FEW * (2 * size + 1 + keys)
