"""Products of states with a packed bfloat16 weight, as loops that run as machine code.

The weight is read as it lies (`lade.weights.blocks`), once for `TOKENS` tokens. Sums are float32, in an order that
depends on K alone; states and products are bits of bfloat16 where they are `short`, else of float32.
T tokens, K numbers of a state, N lines of a weight.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lade.base.bits import bits_of, number, rounded
from lade.base.compiled import Compiled, compiled, compiled_as
from lade.base.threads import FORK, UNITS, WORKERS, counters, spread, take, threads_for
from lade.weights.blocks import LINES

Array = Any  # of numbers: a numpy array, or its memoryview

TOKENS = 4  # of a tile
PER_OPERATION = 2  # products of two numbers in the time of an operation of `threads_for`
WHOLE, HALF = 4, 2  # what one tile alone fetches of the next block for each pair of numbers, and one of two tiles


def _multiply_block() -> Any:
    from lade.base.vectors import multiply_block

    return multiply_block


@compiled_as(_multiply_block)
def multiply_block(
    states: Array,
    block: Array,
    later: Array,
    size: int,
    out: Array,
    tokens: int,
    lines: int,
    ahead: int,
) -> None:
    """Scalar products of states with the lines of a block (`lade.base.vectors.multiply_block`)."""
    for token in range(tokens):
        for line in range(lines):
            total = 0.0
            for place in range(size):
                at = (place // 2 * lines + line) * 2 + place % 2
                total += states[token * size + place] * float(number(block[at], True))
            out[token * lines + line] = total


@compiled
def multiply(
    fork: int,
    threads: int,
    counters: Array,
    states: Array,
    tokens: int,
    weight: Array,
    bias: Array,
    short: bool,
    room: Array,
    bits: Array,
) -> None:
    """Multiply states with a weight; further arguments as of `multiply_blocks`.

    Args:
        fork, threads, counters: as of `lade.base.threads.spread`.
        states: [T, K] bits.
        room: `room_for` these, float32.
    """
    numbers, sums = room[: len(states)], room[len(states) :]
    lengthen(states, short, numbers)
    spread(fork, threads, multiply_units, (counters, threads, numbers, tokens, weight, bias, short, sums, bits))


@compiled
def multiply_units(
    counters: Array,
    threads: int,
    states: Array,
    tokens: int,
    weight: Array,
    bias: Array,
    short: bool,
    sums: Array,
    bits: Array,
) -> None:
    """The share of one thread: a block at a time."""
    own, units = sums[take(counters, WORKERS) * tokens * LINES :], units_of(len(bits) // tokens)
    unit = take(counters, UNITS)
    while unit < units:
        later = weight[block_begin(weight, units, unit + threads) :]
        multiply_blocks(states, tokens, weight, bias, later, short, own, bits, unit)
        unit = take(counters, UNITS)


@compiled
def block_begin(weight: Array, blocks: int, place: int) -> int:
    """Where one of the blocks of a weight begins."""
    return len(weight) // blocks * place


@compiled
def multiply_blocks(
    states: Array,
    tokens: int,
    weight: Array,
    bias: Array,
    later: Array,
    short: bool,
    sums: Array,
    bits: Array,
    unit: int,
) -> None:
    """One block of the weight.

    Args:
        states: [T, K] float32
        weight: bits of bfloat16.
        bias: [N] bits; empty for none.
        later: the block that will be read next.
        short: whether bits of a bias and of products are those of bfloat16.
        sums: [T, LINES] float32 to work in.
        bits: [T, N] the products, rounded.
    """
    lines, begin = len(bits) // tokens, unit * LINES
    end = min(begin + LINES, lines)
    block = weight[block_begin(weight, units_of(lines), unit) :]
    multiply_tiles(states, tokens, block, later, len(states) // tokens, sums)
    for token in range(tokens):
        own, goal = sums[token * LINES : token * LINES + end - begin], bits[token * lines + begin : token * lines + end]
        if len(bias):
            for place in range(len(own)):
                goal[place] = rounded(np.float32(own[place]) + number(bias[begin + place], short), short)
        else:
            for place in range(len(own)):
                goal[place] = rounded(own[place], short)


@compiled
def multiply_tiles(states: Array, tokens: int, block: Array, later: Array, size: int, out: Array) -> None:
    """All states with a block, to `out` [T, LINES]; tiles share in fetching a later block, so that none waits long."""
    tiles, first, part = tokens // TOKENS, tokens % TOKENS, len(block[: LINES * size])
    if first and tiles:
        multiply_few(states, first, block, later, size, out)
    elif first == 1:
        multiply_block(states, block, later, size, out, 1, LINES, WHOLE)
    elif first == 2:
        multiply_block(states, block, later, size, out, 2, LINES, WHOLE)
    elif first == 3:
        multiply_block(states, block, later, size, out, 3, LINES, WHOLE)
    for tile in range(tiles):
        token = first + tile * TOKENS
        own, goal = states[token * size :], out[token * LINES :]
        if tiles == 1:
            multiply_block(own, block, later, size, goal, TOKENS, LINES, WHOLE)
        elif tiles < WHOLE and tile < HALF:
            ahead = later[part // HALF * tile :]
            multiply_block(own, block, ahead, size, goal, TOKENS, LINES, HALF)
        elif tiles >= WHOLE > tile:
            ahead = later[part // WHOLE * tile :]
            multiply_block(own, block, ahead, size, goal, TOKENS, LINES, 1)
        else:
            multiply_block(own, block, later, size, goal, TOKENS, LINES, 0)


@compiled
def multiply_few(states: Array, tokens: int, block: Array, later: Array, size: int, out: Array) -> None:
    """Fewer states than a tile has, before whole tiles."""
    if tokens == 1:
        multiply_block(states, block, later, size, out, 1, LINES, 0)
    elif tokens == 2:
        multiply_block(states, block, later, size, out, 2, LINES, 0)
    else:
        multiply_block(states, block, later, size, out, 3, LINES, 0)


@compiled
def units_of(lines: int) -> int:
    """How many blocks so many lines are."""
    return (lines + LINES - 1) // LINES


@compiled
def lengthen(bits: Array, short: bool, numbers: Array) -> None:
    """The numbers of bits."""
    for place in range(len(bits)):
        numbers[place] = number(bits[place], short)


MULTIPLY_BLOCKS = Compiled(multiply)


def room_for(numbers: int, tokens: int, threads: int) -> np.ndarray:
    """Memory to multiply so many numbers of so many states."""
    return np.empty(numbers + threads * tokens * LINES, np.float32)


def multiplied_by_blocks(
    states: torch.Tensor, blocks: np.ndarray, lines: int, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """[..., N] products of contiguous [..., K] states, float32 or bfloat16, with the memory of a weight."""
    *shape, size = states.shape
    found = torch.empty(*shape, lines, dtype=states.dtype, device="cpu")
    given, bits, tokens = bits_of(states), bits_of(found), states.numel() // size
    added, threads = given[:0] if bias is None else bits_of(bias.detach()), threads_of(tokens * len(blocks), lines)
    room, short = room_for(len(given), tokens, threads), states.dtype is torch.bfloat16
    MULTIPLY_BLOCKS(FORK, threads, counters(), given, tokens, blocks, added, short, room, bits)
    return found


def threads_of(products: int, lines: int) -> int:
    """How many threads are worth so many products of two numbers, where each takes `LINES` lines at a time."""
    return min(threads_for(products // PER_OPERATION), units_of(lines))


def exercise() -> None:
    """Call it with the arguments that decoding gives it."""
    for dtype in (torch.float32, torch.bfloat16):
        multiplied_by_blocks(torch.zeros(1, 2, dtype=dtype, device="cpu"), np.zeros(2 * LINES, np.uint16), 1)
