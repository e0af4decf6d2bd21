"""Packed bfloat16 weights that lie in blocks of lines, which loops can read as they lie.

A block holds `LINES` lines of a weight: of every line the first two numbers, then of every line the next two. Lines
that fill the last block, and numbers at the end of lines, are 0. oneDNN does not say which layout it chose; a weight
of known numbers that is packed into the same one tells. Knows no model.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from lade.weights.onednn import layout, memory, packed, readable

LINES = 64  # of a block
TOGETHER = 2  # numbers of a line
WORD = 8  # bytes of an int64
NUMBERS = 0x7F00  # bits of bfloat16 below these are those of positive numbers, and none of NaN or infinity
MOST = 1024  # lines of a weight of known numbers; of a longer weight that is packed in the same way they stand for all


def blocks_of(weight: torch.Tensor) -> np.ndarray | None:
    """Flat uint16, the memory of a packed [N, K] weight; who reads it keeps the weight.

    `None` where the weight is of another dtype, or lies in another layout, or K is odd.
    """
    if weight.dtype is not torch.bfloat16 or not weight.is_mkldnn or not readable():
        return None
    return memory(weight) if _lies_in_blocks(*weight.shape, layout(weight)) else None


def lines_of(blocks: np.ndarray, lines: int, size: int) -> np.ndarray:
    """[N, K] of the memory of blocks."""
    parts = blocks.reshape(_filled(lines) // LINES, -1, LINES, TOGETHER)
    whole: np.ndarray = parts.transpose(0, 2, 1, 3).reshape(len(parts) * LINES, -1)
    return whole[:lines, :size]


@lru_cache(maxsize=256)
def _lies_in_blocks(lines: int, size: int, described: bytes) -> bool:
    """Whether a [lines, size] weight in this layout does."""
    if size % TOGETHER:
        return False
    few = min(lines, MOST - LINES + lines % LINES)  # the same number in the last block
    numbers = np.random.default_rng(0).integers(0, NUMBERS, (few, size), np.uint16)
    weight = packed(torch.from_numpy(numbers.view(np.int16)).view(torch.bfloat16))
    blocks = memory(weight)
    if not _differ_by(described, layout(weight), lines, few) or blocks.size % (_filled(few) * TOGETHER):
        return False
    found = lines_of(blocks, few, size)
    return found.shape == numbers.shape and bool((found == numbers).all())


def _differ_by(one: bytes, other: bytes, lines: int, few: int) -> bool:
    """Whether two layouts differ by numbers of lines alone, and in nothing that tells where a number lies."""
    if len(one) != len(other):
        return False
    words = len(one) // WORD * WORD
    pairs = zip(*(np.frombuffer(each[:words], np.int64).tolist() for each in (one, other)), strict=True)
    differing = {pair for pair in pairs if pair[0] != pair[1]}
    return differing <= {(lines, few), (_filled(lines), _filled(few))} and one[words:] == other[words:]


def _filled(lines: int) -> int:
    """Lines of as many blocks as these take."""
    return -(-lines // LINES) * LINES
