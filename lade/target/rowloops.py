"""Attention of rows of few nodes, as a loop that runs as machine code.

PyTorch's attention takes tens of microseconds per call, and a call per row; this takes all rows of a layer at once, and
looks at masks only where a key may be hidden. Numbers are bits, as of `lade.base.bits`; sums are float32.
t nodes of a row, K keys of one; H heads of keys and values, each for G query heads; D head size.
"""

from __future__ import annotations

from math import inf, nan
from typing import Any, NamedTuple

import numpy as np

from lade.base.bits import number, rounded
from lade.base.compiled import Compiled, compiled, reordering
from lade.base.lanes import multiply_lanes, transpose
from lade.base.threads import FORK, UNITS, WORKERS, counters, spread, take

Array = Any  # of numbers: a numpy array, or its memoryview

# Of a row, in its line of the table: nodes of the rows before it, and its own; its first key in the buffers and its
# number of keys; the part of them that all nodes see, from one key to another; where it begins in `visible`.
FIRST, NODES, BEGIN, KEYS, SEEN, PREFIX, VISIBLE = range(7)
WIDTH = 7
BLOCK = 4  # queries that look at keys together, so that these are read once
PARTS = 4  # of a head's queries, every fourth block each, so that threads have equal shares of few heads
LANES, HALF, TURNED = 64, 32, 16  # keys that are scored together, and the last that are transposed together
MOST_BLOCKS = 12  # of queries that are scored together
SCORES = 1 << 17  # of these, which stay in a processor's second cache
# exp(x) = 2^n 2^f: 1 / ln 2, a polynomial of 2^f with a relative error of 2e-9 for |f| <= 1/2 (fitted at Chebyshev
# nodes; the highest power first), and where it becomes 0.
PER_OCTAVE = np.float32(1.4426950408889634)
TERMS = tuple(
    map(np.float32, (1.53375769e-4, 1.33998604e-3, 9.61851953e-3, 5.55032900e-2, 2.40226466e-1, 6.93147206e-1, 1.0))
)
FARTHEST = np.float32(-87.0)


class Heads(NamedTuple):
    """H, G and D, and the numbers from one head's keys or values to the next one's."""

    stored: int
    group: int
    size: int
    step: int


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
    """Attention of one part of a row's queries to one head of keys and values: some blocks of queries at a time."""
    size, most, count = heads.size, row[KEYS], row[NODES] * heads.group
    own = head * heads.step + row[BEGIN] * size
    seen_keys, seen_values = keys[own : own + most * size], values[own : own + most * size]
    blocks, end = blocks_for(most), LANES * size + BLOCK * (size + 1)
    turned, mixed = scratch[: LANES * size], scratch[LANES * size : end]
    given, scores = scratch[end : end + blocks * BLOCK * size], scratch[end + blocks * BLOCK * size :]
    source, step = row[FIRST] * heads.stored * heads.group * size + head * count * size, PARTS * BLOCK
    for first in range(part * BLOCK, count, step * blocks):
        together = min(blocks, (count - first + step - 1) // step)
        scale(queries[source : source + count * size], first, together, size, scaling, short, given)
        score(given, seen_keys, together, min(BLOCK, count - first), most, size, short, turned, scores)
        for block in range(together):
            query, own_scores = first + block * step, scores[block * BLOCK * apart_for(most) :]
            mix_block(own_scores, seen_values, row, visible, heads, head, query, short, mixed, out)


@compiled
def scale(queries: Array, first: int, blocks: int, size: int, scaling: Any, short: bool, given: Array) -> None:
    """The numbers of some blocks of queries, times the scores' scaling, one block behind the other."""
    for block in range(blocks):
        begin, goal = (first + block * PARTS * BLOCK) * size, given[block * BLOCK * size :]
        for place in range(min(BLOCK * size, len(queries) - begin)):
            goal[place] = number(queries[begin + place], short) * scaling


@compiled
def mix_block(
    scores: Array,
    values: Array,
    row: Array,
    visible: Array,
    heads: Heads,
    head: int,
    query: int,
    short: bool,
    mixed: Array,
    out: Array,
) -> None:
    """The sums of values by the scores of up to `BLOCK` queries."""
    size, group, most, apart = heads.size, heads.group, row[KEYS], apart_for(row[KEYS])
    line, together = heads.stored * group * size, min(BLOCK, row[NODES] * group - query)
    factors = mixed[BLOCK * size :]
    for each in range(together):
        own = scores[each * apart : each * apart + most]
        hide(own, visible, row, (query + each) // group)
        factors[each] = to_weights(own, short)
    mix(scores, apart, values, together, most, size, mixed)
    for each in range(together):
        node, member = (query + each) // group, (query + each) % group
        goal = (row[FIRST] + node) * line + (head * group + member) * size
        for place in range(size):
            out[goal + place] = rounded(mixed[each * size + place] * factors[each], short)


@compiled
def apart_for(keys: int) -> int:
    """From the scores of one query to those of the next."""
    return (keys + LANES - 1) // LANES * LANES


@compiled
def blocks_for(keys: int) -> int:
    """How many blocks of queries are scored together, so that keys are transposed once for them."""
    return max(1, min(MOST_BLOCKS, SCORES // (BLOCK * apart_for(keys))))


@compiled
def score(
    given: Array,
    keys: Array,
    blocks: int,
    together: int,
    most: int,
    size: int,
    short: bool,
    turned: Array,
    scores: Array,
) -> None:
    """Products of queries and keys: [queries, K], of which the lines are `apart_for` K apart.

    Args:
        together: queries of the first block.
    """
    apart = apart_for(most)
    if blocks == 1 and together < BLOCK:
        for each in range(together):
            score_one(given[each * size : each * size + size], keys, most, size, short, scores[each * apart :])
        return
    for begin in range(0, most, LANES):
        lanes, goal = min(LANES, most - begin), scores[begin:]
        turn(keys[begin * size :], lanes, size, short, turned)
        if lanes > LANES - TURNED:
            multiply_lanes(given, size, turned, LANES, size, goal, apart, blocks * BLOCK, LANES)
        else:
            for lane in range(0, lanes, TURNED):
                multiply_lanes(given, size, turned[lane:], LANES, size, goal[lane:], apart, blocks * BLOCK, TURNED)


@compiled
def turn(keys: Array, lanes: int, size: int, short: bool, turned: Array) -> None:
    """Some keys as columns of [D, LANES]."""
    whole = lanes - lanes % TURNED
    for key in range(0, whole, TURNED):
        transpose(keys[key * size :], size, turned[key:], LANES, TURNED)
    for key in range(whole, lanes):
        for place in range(size):
            turned[place * LANES + key] = number(keys[key * size + place], short)


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


@compiled
def hide(scores: Array, visible: Array, row: Array, node: int) -> None:
    """Scores of keys that a node does not see become -inf."""
    most, seen, prefix = row[KEYS], row[SEEN], row[PREFIX]
    begin = row[VISIBLE] + node * (seen + most - prefix)
    before, after = visible[begin : begin + seen], visible[begin + seen : begin + seen + most - prefix]
    for key in range(seen):
        scores[key] = scores[key] if before[key] else np.float32(-inf)
    behind = scores[prefix:]
    for key in range(most - prefix):
        behind[key] = behind[key] if after[key] else np.float32(-inf)


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


@compiled
def exponential(x: Any) -> Any:
    """exp(x) of a float32 that is not positive, to seven digits; without a library, so that it is vectorised."""
    x = x if x > FARTHEST else FARTHEST
    octaves = np.float32(x * PER_OCTAVE)
    whole = np.int32(octaves - np.float32(0.5))
    rest = np.float32(octaves - np.float32(whole))
    value = TERMS[0]
    for term in TERMS[1:]:
        value = np.float32(value * rest + term)
    power = np.uint32(np.uint32(np.int32(whole + np.int32(127))) << np.uint32(23)).view(np.float32)
    return np.float32(value * power) if x > FARTHEST else np.float32(0.0)


@compiled
def mix(weights: Array, apart: int, values: Array, together: int, most: int, size: int, mixed: Array) -> None:
    """[together, D] sums of values by their weights, which do not depend on other queries."""
    place = 0
    while size - place >= LANES:
        multiply_lanes(weights, apart, values[place:], size, most, mixed[place:], size, together, LANES)
        place += LANES
    if size - place >= HALF:
        multiply_lanes(weights, apart, values[place:], size, most, mixed[place:], size, together, HALF)
        place += HALF
    if size - place >= TURNED:
        multiply_lanes(weights, apart, values[place:], size, most, mixed[place:], size, together, TURNED)
        place += TURNED
    while place < size:
        multiply_lanes(weights, apart, values[place:], size, most, mixed[place:], size, together, 1)
        place += 1


def numbers_for(keys: int, size: int, threads: int) -> int:
    """How many numbers there must be to work in, for rows of at most so many keys."""
    apart, queries = apart_for(keys), MOST_BLOCKS * BLOCK
    scores = max(min(queries * apart, SCORES), BLOCK * apart)
    return threads * (LANES * size + BLOCK * (size + 1) + queries * size + scores)


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
