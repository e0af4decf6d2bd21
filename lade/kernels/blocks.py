"""Sizes of a program of the kernel: how many rows and keys it takes at a time, for each type and head size.

A program's rows are nodes times query heads of a group. More rows read the keys less often, but need more registers;
`benchmarks/kernel.py` compiles all sizes for sm_90a and shows that none spills.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lade.base.powers import power_of_two

LARGEST_HEAD = 256
PACKED = 16  # query heads of a group that one program takes
FEWEST_ROWS = 16  # of a matrix product
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MOST_SPLITS = 64
WARPS = 8  # wanted of each multiprocessor: programs take so many registers that no more fit
FEWEST_BLOCKS = 2  # of keys in a split
FEWEST_KEYS = 4  # in a split, for each row of a program: its sums are written and read again
MERGED = 2048  # numbers that a program merges
MERGED_ALONE = 4096  # numbers of a line up to which one warp merges them
SHORT = 1024  # keys


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rows and keys of a program's block, its warps, and blocks of keys on their way."""

    rows: int
    keys: int
    warps: int
    stages: int


# By bytes of an element and head size, padded to a power of two.
_NARROW = Blocks(16, 64, 4, 3), Blocks(32, 64, 4, 3), Blocks(64, 64, 4, 3), Blocks(128, 64, 8, 3)
_WIDE = Blocks(16, 16, 4, 2), Blocks(32, 16, 4, 2), Blocks(64, 16, 8, 2)  # products of float32 keep all in registers
TABLE = {
    (2, 16): _NARROW,
    (2, 32): _NARROW,
    (2, 64): _NARROW,
    (2, 128): (Blocks(16, 64, 4, 3), Blocks(64, 32, 4, 4)),
    (2, 256): (Blocks(16, 32, 4, 2),),
    (4, 16): _WIDE,
    (4, 32): _WIDE,
    (4, 64): _WIDE,
    (4, 128): (Blocks(16, 16, 4, 2), Blocks(32, 16, 8, 2)),
    (4, 256): (Blocks(16, 16, 8, 2), Blocks(32, 16, 8, 2)),
}


def padded(size: int) -> int:
    """The power of two, at least 16, that holds a head."""
    return max(16, power_of_two(size))


def takes(dtype: torch.dtype, size: int, value_size: int) -> bool:
    """Whether the kernel takes heads of this type and these sizes."""
    return dtype in DTYPES and 0 < size <= LARGEST_HEAD and 0 < value_size <= LARGEST_HEAD


def smallest(dtype: torch.dtype, size: int) -> Blocks:
    """The smallest program for heads of this size, of keys or values, whichever is larger."""
    return TABLE[dtype.itemsize, padded(size)][0]


def blocks(dtype: torch.dtype, size: int, group: int, nodes: int) -> Blocks:
    """The smallest program that takes all nodes of a row, or the largest there is.

    Args:
        size: of the larger of a head's keys and values.
        group: query heads of a head of keys.
        nodes: the most nodes of a row.
    """
    choices = TABLE[dtype.itemsize, padded(size)]
    wanted = nodes * min(group, PACKED)
    return next((choice for choice in choices if choice.rows >= wanted), choices[-1])


def is_short(programs: int, keys: int, block: Blocks, processors: int) -> bool:
    """Whether the smallest programs are the fastest: few keys, which each reads by itself, and all run at once.

    Args:
        programs: of the smallest block.
        keys: the most of a row.
        block: the smallest one.
    """
    return keys <= SHORT and programs <= _together(block, processors)


def splits(programs: int, keys: int, block: Blocks, processors: int) -> int:
    """Into how many parts the keys are split: as many as run at once, so that none waits for another to end.

    Args:
        programs: of one part.
        keys: the most of a row.
        block: of a program.
    """
    fewest = max(FEWEST_BLOCKS * block.keys, FEWEST_KEYS * block.rows)
    return max(1, min(_together(block, processors) // programs, -(-keys // fewest), MOST_SPLITS))


def _together(block: Blocks, processors: int) -> int:
    """Programs that run at once."""
    return WARPS // block.warps * processors


def merged_lines(lines: int, numbers: int, processors: int) -> int:
    """How many of the lines a program merges: a power of two.

    Args:
        numbers: that are read for a line.
    """
    most = max(1, min(MERGED // numbers, lines // processors))
    return 1 << (most.bit_length() - 1)
