"""Products of the states of few tokens with a weight, as loops that run as machine code.

The loops read a weight once, as it lies, for all tokens. PyTorch's library is made for many tokens, and may take twice
as long for two as for one (`benchmarks/few_tokens.py`). Results differ by the order of sums alone.
T tokens, K numbers of a state, N lines of a weight; float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lade.base.compiled import Compiled, compiled, reordering
from lade.base.threads import FORK, UNITS, WORKERS, counters, spread, take

Array = Any  # of numbers: a numpy array, or its memoryview

UNIT = 64  # lines of the weight that a thread takes at once
LINES = 4  # of them that states are multiplied with together


@compiled
def multiply(
    fork: int, threads: int, counters: Array, states: Array, weight: Array, scratch: Array, out: Array
) -> None:
    """Multiply states with the lines of a weight.

    Args:
        fork, threads, counters: as of `lade.base.threads.spread`.
        states: [T, K]
        weight: [N, K]
        scratch: [threads T UNIT] numbers to work in.
        out: [T, N]
    """
    spread(fork, threads, multiply_units, (counters, states, weight, scratch, threads, out))


@compiled
def multiply_units(counters: Array, states: Array, weight: Array, scratch: Array, threads: int, out: Array) -> None:
    """The share of one thread: some lines of the weight at a time."""
    room = len(scratch) // threads
    tokens = room // UNIT
    size, lines = len(states) // tokens, len(out) // tokens
    begin = take(counters, WORKERS) * room
    block = scratch[begin : begin + room]
    unit = take(counters, UNITS)
    while unit * UNIT < lines:
        first = unit * UNIT
        number = min(UNIT, lines - first)
        multiply_block(states, weight[first * size : (first + number) * size], tokens, number, size, block)
        for token in range(tokens):
            goal, source = out[token * lines + first : token * lines + first + number], block[token * UNIT :]
            for place in range(number):
                goal[place] = source[place]
        unit = take(counters, UNITS)


@compiled
def multiply_block(states: Array, weight: Array, tokens: int, number: int, size: int, block: Array) -> None:
    """[T, UNIT], of which each line's first numbers are written."""
    whole = number - number % LINES
    for line in range(0, whole, LINES):
        own = weight[line * size : (line + LINES) * size]
        pairs = tokens - tokens % 2
        for token in range(0, pairs, 2):
            multiply_two(states[token * size : (token + 2) * size], own, size, block[token * UNIT + line :])
        if pairs < tokens:
            multiply_one(states[pairs * size : tokens * size], own, size, block[pairs * UNIT + line :])
    for line in range(whole, number):
        for token in range(tokens):
            block[token * UNIT + line] = product(
                states[token * size : (token + 1) * size], weight[line * size : (line + 1) * size]
            )


@reordering
def multiply_two(states: Array, weight: Array, size: int, block: Array) -> None:
    """Two states with `LINES` lines."""
    one, other = states[:size], states[size : 2 * size]
    first, second = weight[:size], weight[size : 2 * size]
    third, fourth = weight[2 * size : 3 * size], weight[3 * size : 4 * size]
    a = b = c = d = e = f = g = h = np.float32(0.0)
    for place in range(size):
        x, y = one[place], other[place]
        a += np.float32(x * first[place])
        b += np.float32(x * second[place])
        c += np.float32(x * third[place])
        d += np.float32(x * fourth[place])
        e += np.float32(y * first[place])
        f += np.float32(y * second[place])
        g += np.float32(y * third[place])
        h += np.float32(y * fourth[place])
    block[0], block[1], block[2], block[3] = a, b, c, d
    block[UNIT], block[UNIT + 1], block[UNIT + 2], block[UNIT + 3] = e, f, g, h


@reordering
def multiply_one(state: Array, weight: Array, size: int, block: Array) -> None:
    """One state with `LINES` lines."""
    first, second = weight[:size], weight[size : 2 * size]
    third, fourth = weight[2 * size : 3 * size], weight[3 * size : 4 * size]
    a = b = c = d = np.float32(0.0)
    for place in range(size):
        x = state[place]
        a += np.float32(x * first[place])
        b += np.float32(x * second[place])
        c += np.float32(x * third[place])
        d += np.float32(x * fourth[place])
    block[0], block[1], block[2], block[3] = a, b, c, d


@reordering
def product(state: Array, line: Array) -> Any:
    """Of one state and one line."""
    total = np.float32(0.0)
    for place in range(len(state)):
        total += np.float32(state[place] * line[place])
    return total


MULTIPLY = Compiled(multiply)


def exercise() -> None:
    """Call it with the arguments that decoding gives it."""
    numbers = [np.zeros(size, np.float32) for size in (8, 8, UNIT, 1)]
    MULTIPLY(FORK, 1, counters(), *numbers)
