"""The table of block sizes, for every type, head size and group."""

import itertools

import pytest
import torch

from lade.kernels import blocks as sizes
from lade.kernels.blocks import (
    DTYPES,
    FEWEST_ROWS,
    MOST_SPLITS,
    PACKED,
    TABLE,
    Blocks,
    blocks,
    merged_lines,
    padded,
    splits,
)

NODES = (1, 2, 7, 16, 33, 64, 100, 5000)


def is_power(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_head_and_group_has_a_program(dtype: torch.dtype) -> None:
    for size, group in itertools.product(range(1, sizes.LARGEST_HEAD + 1, 5), (*range(1, 18), 71)):
        chosen = [blocks(dtype, size, group, nodes) for nodes in NODES]
        assert [each.rows for each in chosen] == sorted(each.rows for each in chosen)
        for each, nodes in zip(chosen, NODES, strict=True):
            rows, table = nodes * min(group, PACKED), TABLE[dtype.itemsize, padded(size)]
            assert each.rows >= min(rows, table[-1].rows)
            assert all(other.rows < rows for other in table if other.rows < each.rows), "no smaller program would do"
            assert each.rows >= min(group, PACKED), "a program takes a whole node"


def test_short_launches_have_many_small_programs() -> None:
    smallest = sizes.smallest(torch.bfloat16, 128)
    assert smallest.rows == FEWEST_ROWS < blocks(torch.bfloat16, 128, 4, 64).rows
    assert sizes.is_short(264, 1024, smallest, 132)
    assert not sizes.is_short(265, 1024, smallest, 132), "some would wait for others"
    assert not sizes.is_short(264, 1025, smallest, 132), "each reads all keys"


@pytest.mark.parametrize("block", [block for row in TABLE.values() for block in row], ids=str)
def test_programs_are_those_that_the_kernel_can_be(block: sizes.Blocks) -> None:
    assert is_power(block.rows)
    assert block.rows >= FEWEST_ROWS
    assert block.keys in (16, 32, 64), "a block of a tree's keys needs one word of ancestors"
    assert block.warps in (4, 8)


def test_heads_are_padded_to_what_a_matrix_product_takes() -> None:
    assert [padded(size) for size in (1, 16, 17, 64, 80, 96, 128, 129, 256)] == [
        16,
        16,
        32,
        64,
        128,
        128,
        128,
        256,
        256,
    ]


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8])
def test_other_types_and_larger_heads_are_left_to_others(dtype: torch.dtype) -> None:
    assert not sizes.takes(dtype, 64, 64)
    assert not sizes.takes(torch.float16, 64, 257)
    assert sizes.takes(torch.float16, 256, 80)


@pytest.mark.parametrize("block", [Blocks(16, 64, 4, 3), Blocks(64, 32, 4, 4), Blocks(128, 32, 8, 4)], ids=str)
@pytest.mark.parametrize("programs", [1, 8, 100, 1000])
@pytest.mark.parametrize("keys", [1, 300, 8192, 1 << 20])
def test_keys_are_split_so_that_all_processors_work_at_once(block: Blocks, programs: int, keys: int) -> None:
    found = splits(programs, keys, block, 132)
    together = 132 * sizes.WARPS // block.warps
    fewest = max(2 * block.keys, 4 * block.rows)
    assert 1 <= found <= MOST_SPLITS
    assert found == 1 or keys / found > fewest / 2
    assert found == 1 or programs * found <= together, "no part waits for others"
    assert found == MOST_SPLITS or keys <= fewest * found or programs * (found + 1) > together


def test_merged_lines_are_a_power_of_two_that_leaves_work_for_all() -> None:
    for lines in (1, 32, 2048, 1 << 20):
        for numbers in (32, 2048, 1 << 14):
            found = merged_lines(lines, numbers, 132)
            assert is_power(found)
            assert found == 1 or (found * numbers <= sizes.MERGED and lines >= 132 * found)
