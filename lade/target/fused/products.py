"""Products of the states of few tokens with a weight, as loops that run as machine code.

The loops read a weight once, as it lies, for all tokens. PyTorch's library is made for many tokens, and may take twice
as long for two as for one (`benchmarks/few_tokens.py`). Results differ by the order of sums alone.
T tokens, K numbers of a state, N lines of a weight; float32.
"""

from __future__ import annotations

from operator import mul
from typing import Any

import numpy as np

from lade.base.compiled import Compiled, compiled, compiled_as
from lade.base.threads import FORK, UNITS, counters, spread, take
from lade.weights.blockloops import units_of
from lade.weights.blocks import LINES as LINES_OF_BLOCK

Array = Any  # of numbers: a numpy array, or its memoryview

UNIT = LINES_OF_BLOCK  # lines of the weight that a thread takes at once; of a packed weight they are a block
LINES, TOKENS = 4, 4  # of a tile
AHEAD = 2  # lines that a tile fetches into the caches


def _multiply_tile() -> Any:
    from lade.base.vectors import multiply_tile

    return multiply_tile


@compiled_as(_multiply_tile)
def multiply_tile(
    states: Array, weight: Array, later: Array, size: int, out: Array, stride: int, tokens: int, lines: int, ahead: int
) -> None:
    """Scalar products of states with lines of the weight (`lade.base.vectors.multiply_tile`)."""
    for token in range(tokens):
        for line in range(lines):
            own, other = states[token * size : (token + 1) * size], weight[line * size : (line + 1) * size]
            out[token * stride + line] = sum(map(mul, own, other))


@compiled
def multiply(fork: int, threads: int, counters: Array, states: Array, tokens: int, weight: Array, out: Array) -> None:
    """Multiply states with the lines of a weight.

    Args:
        fork, threads, counters: as of `lade.base.threads.spread`.
        states: [T, K]
        weight: [N, K]
        out: [T, N]
    """
    spread(fork, threads, multiply_units, (counters, states, tokens, weight, out))


@compiled
def multiply_units(counters: Array, states: Array, tokens: int, weight: Array, out: Array) -> None:
    """The share of one thread: some lines of the weight at a time."""
    units, unit = units_of(len(out) // tokens), take(counters, UNITS)
    while unit < units:
        multiply_unit(states, tokens, weight, weight[:0], out, unit)
        unit = take(counters, UNITS)


@compiled
def multiply_unit(states: Array, tokens: int, weight: Array, bias: Array, out: Array, unit: int) -> None:
    """`UNIT` lines of the weight, or fewer at its end; a bias is added, if it is not empty."""
    size, lines, begin = len(states) // tokens, len(out) // tokens, unit * UNIT
    end = min(begin + UNIT, lines)
    whole = end - (end - begin) % LINES
    for line in range(begin, whole, LINES):
        multiply_lines(states, tokens, weight[line * size :], size, out[line:], lines)
    for line in range(whole, end):
        for token in range(tokens):
            own, goal = states[token * size :], out[token * lines + line :]
            multiply_tile(own, weight[line * size :], weight, size, goal, lines, 1, 1, 0)
    if len(bias):
        for token in range(tokens):
            goal = out[token * lines :]
            for line in range(begin, end):
                goal[line] += bias[line]


@compiled
def multiply_lines(states: Array, tokens: int, weight: Array, size: int, out: Array, stride: int) -> None:
    """All states with the first `LINES` lines; each tile fetches some of those behind them, so that none waits long."""
    later, first = weight[LINES * size :], tokens % TOKENS
    if first == 1:
        multiply_tile(states, weight, later, size, out, stride, 1, LINES, AHEAD)
    elif first == 2:
        multiply_tile(states, weight, later, size, out, stride, 2, LINES, AHEAD)
    elif first == 3:
        multiply_tile(states, weight, later, size, out, stride, 3, LINES, AHEAD)
    for token in range(first, tokens, TOKENS):
        ahead = later[min(token // TOKENS, LINES // AHEAD - 1) * AHEAD * size :]
        multiply_tile(states[token * size :], weight, ahead, size, out[token * stride :], stride, TOKENS, LINES, AHEAD)


MULTIPLY = Compiled(multiply)


def exercise() -> None:
    """Call it with the arguments that decoding gives it."""
    states, weight, out = (np.zeros(size, np.float32) for size in (8, 8, 1))
    MULTIPLY(FORK, 1, counters(), states, 1, weight, out)
