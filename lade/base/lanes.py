"""What machine code computes in vector registers of rows of numbers (`lade.base.lanevectors`), as Python."""

from __future__ import annotations

from typing import Any

from lade.base.bits import SHORT_BYTES, number
from lade.base.compiled import compiled_as

Array = Any  # of numbers: a numpy array, or its memoryview


def _multiply_lanes() -> Any:
    from lade.base.lanevectors import multiply_lanes

    return multiply_lanes


@compiled_as(_multiply_lanes)
def multiply_lanes(
    factors: Array,
    apart: int,
    step: int,
    matrix: Array,
    stride: int,
    size: int,
    out: Array,
    behind: int,
    number_of: int,
    lanes: int,
) -> None:
    """Sums of the rows of a matrix, each times its factor (`lade.base.lanevectors.multiply_lanes`)."""
    for each in range(number_of):
        for lane in range(lanes):
            total = 0.0
            for row in range(size):
                total += factors[each * apart + row * step] * float(float_at(matrix, row * stride + lane))
            out[each * behind + lane] = total


def _float_at() -> Any:
    from lade.base.lanevectors import float_at

    return float_at


@compiled_as(_float_at)
def float_at(numbers: Array, place: int) -> Any:
    """One of an array of float32, their bits, or those of bfloat16."""
    return numbers[place] if numbers.format == "f" else number(numbers[place], numbers.itemsize == SHORT_BYTES)
