"""Choice, NaN and top-k of rows of logits on a CPU, read in one pass that runs as machine code.

The pass finds the largest logit of every group (`lade.core.topk.depth_of_groups`), vectorised, and with these the k
largest of all (`lade.core.largest`). R rows, V vocabulary, k tokens. As Python it is slower than torch, which computes
the same (`lade.core.topk`).
"""

from __future__ import annotations

from functools import lru_cache
from math import exp
from typing import Any, NamedTuple

import numpy as np
import torch

from lade.base.bits import bits_of
from lade.base.compiled import Compiled, compiled, reordering
from lade.base.lanes import float_at
from lade.base.searching import largest_of_groups
from lade.base.threads import FORK, UNITS, WORKERS, counters, spread, take, threads_for
from lade.core.largest import find_largest
from lade.core.topk import depth_of_groups, is_exact

Array = Any  # of numbers: a numpy array, or its memoryview

HALVINGS = 6  # of an exponent before it goes into the exponential series, squarings behind it
FARTHEST = np.float32(-0.5)  # of halved exponents; exp(-32) adds nothing to a sum that is at least 1
HALVED = np.float32(1.0 / (1 << HALVINGS))
NOTHING = np.float32(0.0)
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


def read_out(logits: torch.Tensor, within: int, k: int, inverse_temperatures: np.ndarray | float) -> Readout:
    """Read rows of logits, in place.

    Args:
        logits: [R, V] float32 or bfloat16, on the CPU.
        within: the top-k is that of the ids below this one.
        k: at most `within`.
        inverse_temperatures: [R] float32, or one for all rows; multiply the logits before the softmax.
    """
    rows, size = logits.shape
    if not isinstance(inverse_temperatures, np.ndarray):
        inverse_temperatures = _alike(rows, inverse_temperatures)
    found = Readout(
        np.empty(rows, np.int32),
        np.empty(rows, np.bool_),
        np.empty((rows, k), np.int32),
        np.empty((rows, k), np.float32),
    )
    depth, threads = depth_of_groups(within, k), threads_for(logits.numel())
    scratch = np.empty(threads * (within // depth + within), np.float32)
    READ_ROWS(
        *(FORK, threads, counters(), bits_of(logits.contiguous())),
        *(size, within, depth, is_exact(within, k), inverse_temperatures, scratch),
        *(found.greedy, found.nan, found.tokens.ravel(), found.probabilities.ravel()),
    )
    return found


@lru_cache
def _alike(number: int, value: float) -> np.ndarray:
    """[number] float32, not to be changed."""
    return np.full(number, value, np.float32)


@compiled
def read_rows(
    fork: int,
    threads: int,
    counters: Array,
    bits: Array,
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
        exact: whether all logits add to the sum of the softmax.
        scratch: of each thread `within` numbers, and one per group.
        tokens, probabilities: k per row.
    """
    shape = size, within, depth, len(scratch) // threads
    found = greedy, nan, tokens, probabilities
    arguments = counters, bits, shape, exact, inverse_temperatures, scratch, found
    spread(fork, threads, read_units, arguments)


@compiled
def read_units(
    counters: Array,
    bits: Array,
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
        nan[row] = read_row(logits, within, depth, exact, heat, own, greedy, row, best, largest)
        row = take(counters, UNITS)


@compiled
def read_row(
    own: Array,
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
    found_nan = largest_of_groups(own, groups, depth, maxima)
    number = find_largest(own, groups, depth, within, maxima, values, best, largest)
    greedy[row] = best[0]
    found_nan |= read_rest(own, groups * depth, within, largest[0], greedy, row)
    if found_nan:
        greedy[row] = first_nan(own)
        return True
    if exact:
        number = read_values(own, within, values)
    total = exponential_sum(values, number, largest[0], inverse_temperature)
    if not exact:
        total += exponential_sum(maxima, groups, largest[0], inverse_temperature)
    to_probabilities(largest, total, inverse_temperature)
    return False


@compiled
def read_rest(own: Array, begin: int, within: int, top: Any, greedy: Array, row: int) -> bool:
    """The choice where an id beyond the top-k's has the largest logit. Returns whether there is NaN from `begin` on."""
    found_nan = False
    for at in range(begin, len(own)):
        value = float_at(own, at)
        found_nan |= value != value
        if at >= within and value > top:
            top, greedy[row] = value, at
    return found_nan


@compiled
def first_nan(own: Array) -> int:
    at = 0
    value = float_at(own, at)
    while value == value:
        at += 1
        value = float_at(own, at)
    return at


@compiled
def read_values(own: Array, within: int, values: Array) -> int:
    """All logits. Returns their number."""
    for at in range(within):
        values[at] = float_at(own, at)
    return within


@reordering
def exponential_sum(values: Array, number: int, top: Any, inverse_temperature: Any) -> Any:
    """The sum of exp(inverse temperature (value - top)), to five digits.

    exp(x) = exp(x / 2^n)^(2^n), of which a few terms of the series suffice, so that it is vectorised without a library.
    """
    scale, (one, half, third, fourth, fifth) = inverse_temperature * HALVED, SERIES
    total = NOTHING
    for at in range(number):
        x = scale * (values[at] - top)
        x = x if x > FARTHEST else FARTHEST
        y = one + x * (one + x * (half + x * (third + x * (fourth + x * fifth))))
        for _ in range(HALVINGS):
            y *= y
        total += y
    return total


@compiled
def to_probabilities(largest: Array, total: Any, inverse_temperature: Any) -> None:
    """Logits to probabilities; NaN where the largest is infinite, as those of softmax."""
    top = largest[0]
    total += top - top
    for rank in range(len(largest)):
        largest[rank] = exp(inverse_temperature * (largest[rank] - top)) / total


READ_ROWS = Compiled(read_rows)
