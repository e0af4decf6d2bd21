"""What stands between the products of a decoder layer, as loops that run as machine code.

States are the bits of numbers: of bfloat16 where they are `short`, else of float32. Every result is rounded where
transformers' operations round it, so that the two differ by the order of a sum alone.
T tokens, H heads of keys and values, each for G query heads, D head size.
"""

from __future__ import annotations

from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from lade.base.bits import number, rounded
from lade.base.compiled import Compiled, compiled

Array = Any  # of numbers: a numpy array, or its memoryview


class Heads(NamedTuple):
    """H and S of `rotate_and_store`, and D."""

    queries: int
    stored: int
    size: int


@compiled
def normalise(
    states: Array, added: Array, weight: Array, epsilon: Any, short: bool, squares: Array, normal: Array
) -> None:
    """Add to states in place, and divide each line by the root of its mean square (arXiv 1910.07467).

    Args:
        states: [T, M]
        added: [T, M]; empty for nothing.
        weight: [M] factors of the result.
        epsilon: added to the mean square, float32.
        squares: [M] float32 numbers to work in.
        normal: [T, M] the result.
    """
    size = len(weight)
    for begin in range(0, len(states), size):
        line, result = states[begin : begin + size], normal[begin : begin + size]
        if len(added):
            add_to(line, added[begin : begin + size], short)
        factor = inverse_root(line, epsilon, short, squares)
        for place in range(size):
            value = rounded(number(line[place], short) * factor, short)
            result[place] = rounded(number(weight[place], short) * number(value, short), short)


@compiled
def add_to(line: Array, added: Array, short: bool) -> None:
    """Add numbers in place."""
    for place in range(len(line)):
        line[place] = rounded(number(line[place], short) + number(added[place], short), short)


@compiled
def inverse_root(line: Array, epsilon: Any, short: bool, squares: Array) -> Any:
    """One over the root of the mean square. The halves are added to each other, which is a loop over lanes."""
    size = len(line)
    for place in range(size):
        value = number(line[place], short)
        squares[place] = value * value
    width = size
    while width > 1:
        half = (width + 1) // 2
        first, second = squares[:half], squares[half:width]
        for place in range(len(second)):
            first[place] = np.float32(np.float32(first[place]) + np.float32(second[place]))
        width = half
    mean = np.float32(np.float32(squares[0]) / np.float32(size))
    return np.float32(np.float32(1.0) / np.float32(sqrt(np.float32(mean + epsilon))))


@compiled
def rotate_heads(
    states: Array, cosines: Array, sines: Array, begin: int, step: int, heads: int, size: int, short: bool, out: Array
) -> None:
    """Rotate some heads of one token (arXiv 2104.09864).

    Args:
        states: [heads, D]
        cosines, sines: [D / 2] of its position.
        begin: where the first head goes in `out`.
        step: from there to the next head.
    """
    half = size // 2
    for head in range(heads):
        lower, upper = states[head * size : head * size + half], states[head * size + half : head * size + size]
        goal = begin + head * step
        low, high = out[goal : goal + half], out[goal + half : goal + size]
        for place in range(half):
            cosine, sine = number(cosines[place], short), number(sines[place], short)
            left, right = number(lower[place], short), number(upper[place], short)
            first = number(rounded(left * cosine, short), short)
            second = number(rounded(right * cosine, short), short)
            low[place] = rounded(first - number(rounded(right * sine, short), short), short)
            high[place] = rounded(second + number(rounded(left * sine, short), short), short)


@compiled
def rotate_and_store(
    queries: Array,
    keys: Array,
    values: Array,
    cosines: Array,
    sines: Array,
    places: Array,
    ends: Array,
    heads: Heads,
    short: bool,
    folded: Array,
    key_buffer: Array,
    value_buffer: Array,
) -> None:
    """Rotate queries and keys, fold the query heads of a group, and store keys and values.

    Args:
        queries: [T, H * G, D]
        keys, values: [T, S, D] of S heads.
        cosines, sines: [T, D / 2]
        places: [T] in the buffers.
        ends: of each row's tokens.
        folded: of each row of t tokens [H, t * G, D], one behind the other.
        key_buffer, value_buffer: [S, total, D]
    """
    stored, size, tokens, half = heads.stored, heads.size, len(places), heads.size // 2
    width, line = len(queries) // tokens, stored * size
    group, total = width // (heads.queries * size), len(key_buffer) // line
    first, row = 0, 0
    for token in range(tokens):
        if token == ends[row]:
            first, row = token, row + 1
        cosine, sine = cosines[token * half : token * half + half], sines[token * half : token * half + half]
        own, step = queries[token * width : token * width + width], (ends[row] - first) * group * size
        for head in range(heads.queries):
            part = own[head * group * size : head * group * size + group * size]
            begin = first * width + head * step + (token - first) * group * size
            rotate_heads(part, cosine, sine, begin, size, group, size, short, folded)
        begin, step = places[token] * size, total * size
        rotate_heads(
            keys[token * line : token * line + line], cosine, sine, begin, step, stored, size, short, key_buffer
        )
        for head in range(stored):
            source, goal = values[token * line + head * size :], value_buffer[begin + head * step :]
            for place in range(size):
                goal[place] = source[place]


NORMALISE, ROTATE = Compiled(normalise), Compiled(rotate_and_store)


def exercise() -> None:
    """Call both with the arguments that decoding gives them."""
    for short, kind in ((False, np.uint32), (True, np.uint16)):
        bits = [np.zeros(2, kind) for _ in range(9)]
        NORMALISE(*bits[:3], np.float32(1), short, np.zeros(2, np.float32), bits[3])
        place = np.zeros(1, np.int64)
        ROTATE(*bits[:3], *(line[:1] for line in bits[3:5]), place, place + 1, Heads(1, 1, 2), short, *bits[5:8])
