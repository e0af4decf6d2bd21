"""Attention of many queries to one head's keys and values, tile by tile, as a loop that runs as machine code.

The softmax of the tiles before is corrected with each tile (arXiv 1805.02867, 2205.14135), so no query's scores are
kept, and a tile is read once for all queries. Queries lie side by side in vector registers.
Numbers are bits, as of `lade.base.bits`; sums are float32. Q queries in L lanes; K keys of a row; D head size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lade.base.bits import number
from lade.base.compiled import compiled
from lade.base.lanes import multiply_lanes
from lade.base.softmax import ROWS, SHRINK, begin_softmax, weigh, weight_of_sums
from lade.target.queryloops import KEYS, TILE, Side, hide, is_seen, mix, tell

Array = Any  # of numbers: a numpy array, or its memoryview

LANES, TWICE, MOST = 16, 32, 48  # of one register, of two, and the most queries


@compiled
def attend_tiles(
    queries: Array, side: Side, first: int, count: int, scaling: Any, short: bool, scratch: Array, out: Array
) -> None:
    """Attention of some queries, at most `MOST`, a tile of keys at a time."""
    size, most, lanes = side.heads.size, side.row[KEYS], (count + LANES - 1) // LANES * LANES
    columns, lines = scratch[: MOST * size], scratch[MOST * size : (MOST + TILE) * size]
    sums, more = scratch[(MOST + TILE) * size :], scratch[(2 * MOST + TILE) * size :]
    scores, known = scratch[(3 * MOST + TILE) * size :], scratch[(3 * MOST + TILE) * size + TILE * MOST :]
    load(queries[first * size :], count, lanes, size, scaling, short, columns)
    begin_softmax(known, lanes)
    for place in range(count * size):
        sums[place] = np.float32(0.0)
    for begin in range(0, most, TILE):
        together = min(TILE, most - begin)
        if not is_seen(begin, together, side, first, count):
            continue
        widen(side.keys[begin * size :], together * size, short, lines)
        score(lines, together, columns, lanes, size, scores)
        hide(scores, begin, together, lanes, side, first, count)
        weigh(scores, together, lanes, known, short)
        mix(scores, 1, lanes, side.values[begin * size :], count, together, size, more)
        for each in range(count):
            shrink, own, new = known[SHRINK * lanes + each], sums[each * size : each * size + size], more[each * size :]
            for place in range(size):
                own[place] = np.float32(np.float32(own[place] * shrink) + new[place])
    for each in range(count):
        tell(sums[each * size :], weight_of_sums(known, lanes, each), side, first + each, short, out)


@compiled
def load(queries: Array, count: int, lanes: int, size: int, scaling: Any, short: bool, columns: Array) -> None:
    """Queries [Q, D] as columns [D, L] of their numbers times the scores' scaling; the other lanes are 0."""
    for place in range(size):
        for lane in range(lanes):
            columns[place * lanes + lane] = np.float32(0.0)
        for lane in range(count):
            columns[place * lanes + lane] = np.float32(number(queries[lane * size + place], short) * scaling)


@compiled
def widen(bits: Array, count: int, short: bool, out: Array) -> None:
    """Numbers as float32."""
    for place in range(count):
        out[place] = number(bits[place], short)


@compiled
def score(lines: Array, keys: int, columns: Array, lanes: int, size: int, scores: Array) -> None:
    """[keys, L] products of keys and queries."""
    if lanes == MOST:
        multiply_lanes(lines, size, 1, columns, lanes, size, scores, lanes, keys, MOST)
    elif lanes == TWICE:
        multiply_lanes(lines, size, 1, columns, lanes, size, scores, lanes, keys, TWICE)
    else:
        multiply_lanes(lines, size, 1, columns, lanes, size, scores, lanes, keys, LANES)


def numbers_for_tiles(size: int) -> int:
    """How many numbers one thread must have to work in."""
    return (3 * MOST + TILE) * size + (TILE + ROWS) * MOST
