"""Attention of rows of few nodes, as a loop that runs as machine code.

PyTorch's attention takes tens of microseconds per call, and a call per row; this takes all rows of a layer at once, and
looks at masks only where a key may be hidden. Numbers are bits, as of `lade.target.fused.loops`; sums are float32.
t nodes of a row, K keys of one; H heads of keys and values, each for G query heads; D head size.
"""

from __future__ import annotations

from math import inf, nan
from typing import Any, NamedTuple

import numpy as np

from lade.base.bits import number, rounded
from lade.base.compiled import Compiled, compiled, reordering
from lade.base.threads import FORK, UNITS, WORKERS, counters, spread, take

Array = Any  # of numbers: a numpy array, or its memoryview

# Of a row, in its line of the table: nodes of the rows before it, and its own; its first key in the buffers and its
# number of keys; the part of them that all nodes see, from one key to another; where it begins in `visible`.
FIRST, NODES, BEGIN, KEYS, SEEN, PREFIX, VISIBLE = range(7)
WIDTH = 7
BLOCK = 4  # queries that look at keys together, so that these are read once
PARTS = 4  # of a head's queries, every fourth block each, so that threads have equal shares of few heads
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
        scratch: `scratch_for` of the most keys of a row, float32.
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
    size, group, most = heads.size, heads.group, row[KEYS]
    line, count = heads.stored * group * size, row[NODES] * group
    own = head * heads.step + row[BEGIN] * size
    seen_keys, seen_values = keys[own : own + most * size], values[own : own + most * size]
    factors, block = scratch[:BLOCK], scratch[BLOCK : BLOCK + BLOCK * size]
    mixed, scores = scratch[BLOCK + BLOCK * size : BLOCK + 2 * BLOCK * size], scratch[BLOCK + 2 * BLOCK * size :]
    for query in range(part * BLOCK, count, PARTS * BLOCK):
        together, source = min(BLOCK, count - query), row[FIRST] * line + (head * count + query) * size
        for place in range(together * size):
            block[place] = number(queries[source + place], short) * scaling
        score(block, seen_keys, together, most, size, short, scores)
        for each in range(together):
            own_scores = scores[each * most : each * most + most]
            hide(own_scores, visible, row, (query + each) // group)
            factors[each] = to_weights(own_scores, short)
        mix(scores, seen_values, together, most, size, short, mixed)
        for each in range(together):
            node, member = (query + each) // group, (query + each) % group
            goal = (row[FIRST] + node) * line + (head * group + member) * size
            for place in range(size):
                out[goal + place] = rounded(mixed[each * size + place] * factors[each], short)


@compiled
def score(block: Array, keys: Array, together: int, most: int, size: int, short: bool, scores: Array) -> None:
    """[together, K] products of queries and keys."""
    if together == BLOCK:
        score_block(block, keys, most, size, short, scores)
    else:
        for each in range(together):
            score_one(block[each * size : each * size + size], keys, most, size, short, scores[each * most :])


@reordering
def score_block(block: Array, keys: Array, most: int, size: int, short: bool, scores: Array) -> None:
    """The same for a whole block."""
    first, second = block[:size], block[size : 2 * size]
    third, fourth = block[2 * size : 3 * size], block[3 * size : 4 * size]
    for key in range(most):
        own = keys[key * size : key * size + size]
        a = b = c = d = np.float32(0.0)
        for place in range(size):
            value = number(own[place], short)
            a += np.float32(first[place] * value)
            b += np.float32(second[place] * value)
            c += np.float32(third[place] * value)
            d += np.float32(fourth[place] * value)
        scores[key], scores[most + key], scores[2 * most + key], scores[3 * most + key] = a, b, c, d


@reordering
def score_one(query: Array, keys: Array, most: int, size: int, short: bool, scores: Array) -> None:
    """The same for one query, and four keys at a time."""
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
def mix(weights: Array, values: Array, together: int, most: int, size: int, short: bool, mixed: Array) -> None:
    """[together, D] sums of values by their weights, [together, K]."""
    for place in range(together * size):
        mixed[place] = np.float32(0.0)
    if together == BLOCK:
        mix_block(weights, values, most, size, short, mixed)
    else:
        for each in range(together):
            mix_one(weights[each * most :], values, most, size, short, mixed[each * size : each * size + size])


@reordering
def mix_block(weights: Array, values: Array, most: int, size: int, short: bool, mixed: Array) -> None:
    """The same for a whole block, and two keys at a time."""
    first, second = mixed[:size], mixed[size : 2 * size]
    third, fourth = mixed[2 * size : 3 * size], mixed[3 * size : 4 * size]
    for key in range(0, most - 1, 2):
        one, other = values[key * size : key * size + size], values[key * size + size : key * size + 2 * size]
        a, b, c, d = weights[key], weights[most + key], weights[2 * most + key], weights[3 * most + key]
        e, f, g, h = weights[key + 1], weights[most + key + 1], weights[2 * most + key + 1], weights[3 * most + key + 1]
        for place in range(size):
            left, right = number(one[place], short), number(other[place], short)
            first[place] += a * left + e * right
            second[place] += b * left + f * right
            third[place] += c * left + g * right
            fourth[place] += d * left + h * right
    if most % 2:
        last = values[(most - 1) * size : most * size]
        for each in range(BLOCK):
            add_value(weights[each * most + most - 1], last, size, short, mixed[each * size : each * size + size])


@reordering
def mix_one(weights: Array, values: Array, most: int, size: int, short: bool, mixed: Array) -> None:
    """The same for one query, and four keys at a time."""
    whole = most - most % 4
    for key in range(0, whole, 4):
        begin = key * size
        first, second = values[begin : begin + size], values[begin + size : begin + 2 * size]
        third, fourth = values[begin + 2 * size : begin + 3 * size], values[begin + 3 * size : begin + 4 * size]
        a, b, c, d = weights[key], weights[key + 1], weights[key + 2], weights[key + 3]
        for place in range(size):
            left = a * number(first[place], short) + b * number(second[place], short)
            right = c * number(third[place], short) + d * number(fourth[place], short)
            mixed[place] += left + right
    for key in range(whole, most):
        add_value(weights[key], values[key * size : key * size + size], size, short, mixed)


@compiled
def add_value(weight: Any, value: Array, size: int, short: bool, mixed: Array) -> None:
    """Add one value times its weight."""
    for place in range(size):
        mixed[place] += weight * number(value[place], short)


def scratch_for(keys: int, size: int, threads: int) -> np.ndarray:
    """Numbers to work in, for rows of at most so many keys."""
    return np.empty(threads * BLOCK * (1 + 2 * size + keys), np.float32)


ATTEND = Compiled(attend_rows)


def exercise() -> None:
    """Call it with the arguments that decoding gives it."""
    row, one = np.array([0, 1, 0, 1, 0, 1, 0]), np.float32(1.0)
    for short, kind in ((False, np.uint32), (True, np.uint16)):
        bits = [np.zeros(2, kind) for _ in range(4)]
        heads, scratch = Heads(1, 1, 2, 2), scratch_for(1, 2, 1)
        ATTEND(FORK, 1, counters(), *bits[:3], row, np.zeros(0, np.uint8), heads, one, short, scratch, bits[3])
