"""Choice, NaN and top-k of rows of logits on a CPU, read in one pass that runs as machine code.

The pass finds the largest logit of every group (`lade.core.topk.depth_of_groups`), vectorised. The k largest of all are
in the groups whose largest is no less than the k-th largest of these. R rows, V vocabulary, k tokens. As Python it is
slower than torch, which computes the same (`lade.core.topk`).
"""

from __future__ import annotations

from math import exp, inf
from typing import Any, NamedTuple

import numpy as np
import torch

from lade.base.compiled import Compiled, compiled
from lade.base.threads import FORK, UNITS, WORKERS, counters, spread, take, threads_for
from lade.core.topk import depth_of_groups, is_exact

Array = Any  # of numbers: a numpy array, or its memoryview

HALVINGS = 6  # of an exponent before it goes into the exponential series, squarings behind it
FARTHEST = np.float32(-0.5)  # of halved exponents; exp(-32) adds nothing to a sum that is at least 1
HALVED = np.float32(1.0 / (1 << HALVINGS))
SERIES = tuple(np.float32(1.0 / factorial) for factorial in (1, 2, 6, 24, 120))


class Readout(NamedTuple):
    """What rows of logits say.

    Attributes:
        greedy: [R] int32, the first of the largest logits; the first NaN where there is one.
        nan: [R] bool, whether there is NaN; the top-k says nothing then.
        tokens: [R, k] int32, likeliest first, of equal logits the lowest id first.
        probabilities: [R, k] float32, those of `lade.core.topk.likeliest`.
    """

    greedy: np.ndarray
    nan: np.ndarray
    tokens: np.ndarray
    probabilities: np.ndarray


def read_out(logits: torch.Tensor, within: int, k: int, inverse_temperatures: np.ndarray) -> Readout:
    """Read rows of logits, in place.

    Args:
        logits: [R, V] float32 or bfloat16, on the CPU.
        within: the top-k is that of the ids below this one.
        k: at most `within`.
        inverse_temperatures: [R] float32, multiply the logits before the softmax.
    """
    rows, size = logits.shape
    half = logits.dtype == torch.bfloat16
    bits = (logits.view(torch.int16) if half else logits).numpy().reshape(-1)  # a copy if it is not contiguous
    found = Readout(
        np.empty(rows, np.int32),
        np.empty(rows, np.bool_),
        np.empty((rows, k), np.int32),
        np.empty((rows, k), np.float32),
    )
    depth, threads = depth_of_groups(within, k), threads_for(logits.numel())
    scratch = np.empty(threads * (within // depth + within), np.float32)
    READ_ROWS(
        *(FORK, threads, counters(), bits.view(np.uint16 if half else np.uint32)),
        *(np.uint32(16 if half else 0), size, within, depth, is_exact(within, k), inverse_temperatures, scratch),
        *(found.greedy, found.nan, found.tokens.ravel(), found.probabilities.ravel()),
    )
    return found


@compiled
def read_rows(
    fork: int,
    threads: int,
    counters: Array,
    bits: Array,
    shift: Any,
    size: int,
    within: int,
    depth: int,
    exact: bool,
    inverse_temperatures: Array,
    scratch: Array,
    greedy: Array,
    nan: Array,
    tokens: Array,
    probabilities: Array,
) -> None:
    """`read_out`.

    Args:
        fork, threads, counters: as of `lade.base.threads.spread`.
        bits: the logits, `size` per row.
        shift: moves the bits of a logit to where float32 has them.
        exact: whether all logits add to the sum of the softmax.
        scratch: of each thread `within` numbers, and one per group.
        tokens, probabilities: k per row.
    """
    shape = size, within, depth, len(scratch) // threads
    found = greedy, nan, tokens, probabilities
    arguments = counters, bits, shift, shape, exact, inverse_temperatures, scratch, found
    spread(fork, threads, read_units, arguments)


@compiled
def read_units(
    counters: Array,
    bits: Array,
    shift: Any,
    shape: tuple[int, int, int, int],
    exact: bool,
    inverse_temperatures: Array,
    scratch: Array,
    found: tuple[Array, Array, Array, Array],
) -> None:
    """The share of one thread: rows.

    Args:
        shape: size, within and depth as of `read_rows`, and the numbers of scratch of a thread.
        found: greedy, NaN, tokens and probabilities as of `read_rows`.
    """
    size, within, depth, room = shape
    greedy, nan, tokens, probabilities = found
    begin, k = take(counters, WORKERS) * room, len(tokens) // max(len(greedy), 1)
    own = scratch[begin : begin + room]
    row = take(counters, UNITS)
    while row < len(greedy):
        best, largest = tokens[row * k : row * k + k], probabilities[row * k : row * k + k]
        logits = bits[row * size : row * size + size]
        heat = inverse_temperatures[row]
        nan[row] = read_row(logits, shift, within, depth, exact, heat, own, greedy, row, best, largest)
        row = take(counters, UNITS)


@compiled
def read_row(
    own: Array,
    shift: Any,
    within: int,
    depth: int,
    exact: bool,
    inverse_temperature: Any,
    scratch: Array,
    greedy: Array,
    row: int,
    best: Array,
    largest: Array,
) -> bool:
    """Read one row. Returns whether there is NaN."""
    groups = within // depth
    maxima, values = scratch[:groups], scratch[groups:]
    found_nan = read_maxima(own, shift, groups, depth, maxima, values)
    number = find_largest(own, shift, groups, depth, within, maxima, values, best, largest)
    greedy[row] = best[0]
    found_nan |= read_rest(own, shift, groups * depth, within, largest[0], greedy, row)
    if found_nan:
        greedy[row] = first_nan(own, shift)
        return True
    if exact:
        number = read_values(own, shift, within, values)
    total = exponential_sum(values, number, largest[0], inverse_temperature)
    if not exact:
        total += exponential_sum(maxima, groups, largest[0], inverse_temperature)
    to_probabilities(largest, total, inverse_temperature)
    return False


@compiled
def value_of(bits: Any, shift: Any) -> Any:
    """The float32 of a logit; the bits of a bfloat16 are the upper half of it."""
    return np.uint32(np.uint32(bits) << shift).view(np.float32)


@compiled
def read_maxima(own: Array, shift: Any, groups: int, depth: int, maxima: Array, others: Array) -> bool:
    """The largest logit of each group. Returns whether there is NaN, which may be passed over.

    Each pass reads two logits of every group and the maxima so far, and writes to the other array: a maximum that is
    written back where it was read becomes a masked store, which takes half of the time with AVX2.

    Args:
        maxima: they stand here afterwards.
        others: as many numbers, to work in.
    """
    found_nan, passes = False, depth // 2
    known, larger = (others, maxima) if passes % 2 else (maxima, others)
    for group in range(groups):
        known[group] = -inf
    for number in range(passes):
        begin = 2 * number * groups
        evens, odds = own[begin : begin + groups], own[begin + groups : begin + 2 * groups]
        for group in range(groups):
            one, other, before = value_of(evens[group], shift), value_of(odds[group], shift), known[group]
            found_nan |= (one != one) | (other != other)
            one = one if one > other else other
            larger[group] = one if one > before else before
        known, larger = larger, known
    return found_nan


@compiled
def find_largest(
    own: Array,
    shift: Any,
    groups: int,
    depth: int,
    within: int,
    maxima: Array,
    values: Array,
    best: Array,
    largest: Array,
) -> int:
    """The k largest logits and their ids. Returns the number of values, which are the logits of the groups searched.

    The maxima of these groups are -inf afterwards.
    """
    least, number = kth_largest(maxima, groups, largest), 0
    for rank in range(len(best)):
        best[rank], largest[rank] = within, -inf
    for group in range(groups):
        if maxima[group] >= least:
            found = values[number : number + depth]
            for rank in range(depth):  # without a branch, so that the loads overlap
                found[rank] = value_of(own[group + rank * groups], shift)
            for rank in range(depth):
                if found[rank] >= least:
                    insert(best, largest, group + rank * groups, found[rank])
            number += depth
            maxima[group] = -inf
    for at in range(groups * depth, within):
        value = value_of(own[at], shift)
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
    for group in range(groups):
        value = maxima[group]
        if value > largest[last]:
            rank = last
            while rank > 0 and largest[rank - 1] < value:
                largest[rank] = largest[rank - 1]
                rank -= 1
            largest[rank] = value
    return largest[last]


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


@compiled
def read_rest(own: Array, shift: Any, begin: int, within: int, top: Any, greedy: Array, row: int) -> bool:
    """The choice where an id beyond the top-k's has the largest logit. Returns whether there is NaN from `begin` on."""
    found_nan = False
    for at in range(begin, len(own)):
        value = value_of(own[at], shift)
        found_nan |= value != value
        if at >= within and value > top:
            top, greedy[row] = value, at
    return found_nan


@compiled
def first_nan(own: Array, shift: Any) -> int:
    at = 0
    value = value_of(own[at], shift)
    while value == value:
        at += 1
        value = value_of(own[at], shift)
    return at


@compiled
def read_values(own: Array, shift: Any, within: int, values: Array) -> int:
    """All logits. Returns their number."""
    for at in range(within):
        values[at] = value_of(own[at], shift)
    return within


@compiled
def exponential_sum(values: Array, number: int, top: Any, inverse_temperature: Any) -> Any:
    """The sum of exp(inverse temperature (value - top)), to five digits; overwrites the values.

    exp(x) = exp(x / 2^n)^(2^n), of which a few terms of the series suffice, so that it is vectorised without a library.
    """
    scale, (one, half, third, fourth, fifth) = inverse_temperature * HALVED, SERIES
    for at in range(number):
        x = scale * (values[at] - top)
        x = x if x > FARTHEST else FARTHEST
        y = one + x * (one + x * (half + x * (third + x * (fourth + x * fifth))))
        for _ in range(HALVINGS):
            y *= y
        values[at] = y
    left = number
    while left > 1:
        folded = left // 2
        ones, others = values[:folded], values[left - folded : left]
        for at in range(folded):
            ones[at] += others[at]
        left -= folded
    return values[0]


@compiled
def to_probabilities(largest: Array, total: Any, inverse_temperature: Any) -> None:
    """Logits to probabilities; NaN where the largest is infinite, as those of softmax."""
    top = largest[0]
    total += top - top
    for rank in range(len(largest)):
        largest[rank] = exp(inverse_temperature * (largest[rank] - top)) / total


READ_ROWS = Compiled(read_rows)
