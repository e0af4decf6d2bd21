"""Attention of rows, as a loop that runs as machine code.

PyTorch's attention takes tens of microseconds per call, and a call per row; this takes all rows of a layer at once, and
looks at masks only where a key may be hidden. Numbers are bits, as of `lade.base.bits`; sums are float32.
t nodes of a row, K keys of one; H heads of keys and values, each for G query heads; D head size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lade.base.compiled import Compiled, compiled
from lade.base.threads import FORK, UNITS, WORKERS, counters, spread, take
from lade.target.fewloops import FEW, attend_few, numbers_for_few
from lade.target.queryloops import BEGIN, FIRST, KEYS, NODES, WIDTH, Heads, Side
from lade.target.tileloops import LANES, MOST, attend_tiles, numbers_for_tiles

Array = Any  # of numbers: a numpy array, or its memoryview

PARTS = 4  # of a head's queries, so that threads have equal shares of few heads


@compiled
def attend_rows(
    fork: int,
    threads: int,
    counters: Array,
    queries: Array,
    keys: Array,
    values: Array,
    rows: Array,
    visible: Array,
    heads: Heads,
    scaling: Any,
    short: bool,
    scratch: Array,
    out: Array,
) -> None:
    """Attention of all rows of a layer.

    Args:
        fork, threads, counters: as of `lade.base.threads.spread`.
        queries: of each row [H, t * G, D], one behind the other.
        keys, values: [H, keys of all rows, D], perhaps with others between the heads.
        rows: [R, WIDTH] int64.
        visible: uint8, of each row [t, those of its keys that not every node sees]: whether a node sees a key.
        scaling: float32, of the scores.
        short: whether numbers are bfloat16.
        scratch: at least `numbers_for` the most keys of a row, float32.
        out: of each row [t, H * G, D], one behind the other.
    """
    arguments = counters, queries, keys, values, rows, visible, heads, scaling, short, scratch, threads, out
    spread(fork, threads, attend_units, arguments)


@compiled
def attend_units(
    counters: Array,
    queries: Array,
    keys: Array,
    values: Array,
    rows: Array,
    visible: Array,
    heads: Heads,
    scaling: Any,
    short: bool,
    scratch: Array,
    threads: int,
    out: Array,
) -> None:
    """The share of one thread: parts of heads of rows."""
    room, units = len(scratch) // threads, len(rows) // WIDTH * heads.stored * PARTS
    begin = take(counters, WORKERS) * room
    own = scratch[begin : begin + room]
    unit = take(counters, UNITS)
    while unit < units:
        of_row, place = unit % (heads.stored * PARTS), unit // (heads.stored * PARTS) * WIDTH
        row, head, part = rows[place : place + WIDTH], of_row // PARTS, of_row % PARTS
        attend_head(queries, keys, values, row, visible, heads, head, part, scaling, short, own, out)
        unit = take(counters, UNITS)


@compiled
def attend_head(
    queries: Array,
    keys: Array,
    values: Array,
    row: Array,
    visible: Array,
    heads: Heads,
    head: int,
    part: int,
    scaling: Any,
    short: bool,
    scratch: Array,
    out: Array,
) -> None:
    """Attention of one part of a row's queries to one head of keys and values."""
    size, most, count = heads.size, row[KEYS], row[NODES] * heads.group
    own = head * heads.step + row[BEGIN] * size
    source = row[FIRST] * heads.stored * heads.group * size + head * count * size
    given = queries[source : source + count * size]
    side = Side(keys[own : own + most * size], values[own : own + most * size], row, visible, heads, head)
    if count <= FEW:
        if part == 0:
            attend_few(given, side, scaling, short, scratch, out)
        return
    together = min(MOST, (count + PARTS * LANES - 1) // (PARTS * LANES) * LANES)
    for first in range(part * together, count, PARTS * together):
        attend_tiles(given, side, first, min(together, count - first), scaling, short, scratch, out)


def numbers_for(keys: int, size: int, threads: int) -> int:
    """How many numbers there must be to work in, for rows of at most so many keys."""
    return threads * max(numbers_for_few(keys, size), numbers_for_tiles(size))


def scratch_for(keys: int, size: int, threads: int) -> np.ndarray:
    """Memory for them."""
    return np.empty(numbers_for(keys, size, threads), np.float32)


ATTEND = Compiled(attend_rows)


def exercise() -> None:
    """Call it with the arguments that decoding gives it."""
    row, one = np.array([0, 1, 0, 1, 0, 1, 0]), np.float32(1.0)
    for short, kind in ((False, np.uint32), (True, np.uint16)):
        bits = [np.zeros(2, kind) for _ in range(4)]
        heads, scratch = Heads(1, 1, 2, 2), scratch_for(1, 2, 1)
        ATTEND(FORK, 1, counters(), *bits[:3], row, np.zeros(0, np.uint8), heads, one, short, scratch, bits[3])
