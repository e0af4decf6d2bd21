"""Sums of rows, and columns of lines, in the vector registers of this machine (`lade.base.lanes` as Python).

Imported where numba is, by who links machine code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from lade.base.vectors import (
    FLOAT,
    INDEX,
    LANE,
    SHORT,
    SPARE,
    load,
    multiply_add,
    rows_from,
    splat,
    store,
    vectors,
)

SUMS = 4  # that are taken together
CHAINS = 2  # into which each sum is parted


@intrinsic(prefer_literal=True)
def multiply_lanes(
    _: Any,
    factors: Any,
    apart: Any,
    matrix: Any,
    stride: Any,
    size: Any,
    out: Any,
    behind: Any,
    number: Any,
    lanes: Any,
) -> Any:
    """Sums of the first `size` rows of a matrix, each times its factor. The order of a sum depends on `size` alone.

    Args:
        factors: of each sum, `apart` from those of the one before.
        matrix: float32, their bits, or those of bfloat16; rows begin `stride` from each other.
        out: each sum, `behind` the one before.
        number: how many sums; four at a time take the least time.
        lanes: numbers of a row; must be known when this is compiled.
    """
    wide = lanes.literal_value

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        first, rows, goal = (
            make_array(signature.args[place])(context, builder, given[place]).data for place in (0, 2, 5)
        )
        whole = builder.and_(given[7], INDEX(-SUMS))

        def add(begin: Any, count: int) -> None:
            own = [builder.add(begin, INDEX(each)) for each in range(count)]
            lines = [builder.gep(first, [builder.mul(each, given[1])]) for each in own]
            goals = [builder.gep(goal, [builder.mul(each, given[6])]) for each in own]
            width, registers = vectors()
            width = min(width, wide)
            together = width * min(wide // width, max((registers - SPARE) // (count * CHAINS), 1))
            for place in range(0, wide, together):
                places = range(place, min(place + together, wide), width)
                sums = _lane_sums(builder, lines, rows, given[3], given[4], places, width)
                for base, row in zip(goals, sums, strict=True):
                    for at, value in zip(places, row, strict=True):
                        store(builder, value, base, INDEX(at))

        with cgutils.for_range_slice(builder, INDEX(0), whole, INDEX(SUMS), intp=INDEX) as (begin, _):
            add(begin, SUMS)
        with cgutils.for_range_slice(builder, whole, given[7], INDEX(1), intp=INDEX) as (begin, _):
            add(begin, 1)
        return context.get_dummy_value()

    integer = types.int64
    arguments = factors, integer, matrix, integer, integer, out, integer, integer, lanes
    return types.void(*arguments), generate


@intrinsic(prefer_literal=True)
def transpose(_: Any, lines: Any, size: Any, out: Any, stride: Any, number: Any) -> Any:
    """Some lines of `size` numbers, one behind the other, as columns.

    Args:
        lines: bits of float32 or bfloat16.
        out: float32, in rows that begin `stride` from each other.
        number: of lines, a multiple of a vector's numbers; must be known when this is compiled.
    """
    count = number.literal_value

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        numbers, goal = (make_array(signature.args[place])(context, builder, given[place]).data for place in (0, 2))
        width = vectors()[0]
        kind, whole = ir.VectorType(FLOAT, width), builder.and_(given[1], INDEX(-width))
        for begin in range(0, count, width):
            own = rows_from(builder, numbers, given[1], range(begin, begin + width))
            with cgutils.for_range_slice(builder, INDEX(0), whole, INDEX(width), intp=INDEX) as (place, _):
                square = _turned(builder, [floats(builder, line, place, kind) for line in own])
                for row, vector in enumerate(square):
                    at = builder.mul(builder.add(place, INDEX(row)), given[3])
                    store(builder, vector, goal, builder.add(at, INDEX(begin)))
            with cgutils.for_range_slice(builder, whole, given[1], INDEX(1), intp=INDEX) as (place, _):
                base = builder.mul(place, given[3])
                for row, line in enumerate(own):
                    one = floats(builder, line, place, ir.VectorType(FLOAT, 1))
                    store(builder, one, goal, builder.add(base, INDEX(begin + row)))
        return context.get_dummy_value()

    return types.void(lines, types.int64, out, types.int64, number), generate


def _turned(builder: Any, rows: list[Any]) -> list[Any]:
    """The columns of a square of vectors: halves change places, then halves of these, and so on."""
    lanes = range(len(rows))
    half = len(rows) // 2
    while half:
        before, rows = rows, [*rows]
        first = [lane if not lane & half else len(lanes) + (lane ^ half) for lane in lanes]
        second = [lane ^ half if not lane & half else len(lanes) + lane for lane in lanes]
        for row in lanes:
            if not row & half:
                pair = before[row], before[row | half]
                rows[row], rows[row | half] = (
                    builder.shuffle_vector(*pair, ir.VectorType(LANE, len(lanes))(mask)) for mask in (first, second)
                )
        half //= 2
    return rows


def _lane_sums(
    builder: Any, factors: Sequence[Any], rows: Any, stride: Any, size: Any, places: Sequence[int], width: int
) -> list[list[Any]]:
    """Per line of factors the sums of the rows at some places, as many as a vector has numbers: those of every second
    row, and the others."""
    kind, whole = ir.VectorType(FLOAT, width), builder.and_(size, INDEX(-CHAINS))
    add, none = multiply_add(builder, kind), kind([0.0] * width)
    held = [[[cgutils.alloca_once_value(builder, none) for _ in places] for _ in factors] for _ in range(CHAINS)]

    def take(line: Any, chain: Any) -> None:
        base = builder.mul(line, stride)
        own = [splat(builder, builder.load(builder.gep(each, [line])), kind) for each in factors]
        for which, place in enumerate(places):
            numbers = floats(builder, rows, builder.add(base, INDEX(place)), kind)
            for factor, row in zip(own, chain, strict=True):
                builder.store(builder.call(add, [factor, numbers, builder.load(row[which])]), row[which])

    with cgutils.for_range_slice(builder, INDEX(0), whole, INDEX(CHAINS), intp=INDEX) as (line, _):
        for which, chain in enumerate(held):
            take(builder.add(line, INDEX(which)), chain)
    with cgutils.for_range_slice(builder, whole, size, INDEX(1), intp=INDEX) as (line, _):
        take(line, held[0])
    return [
        [builder.fadd(*(builder.load(total) for total in both)) for both in zip(*rows_of, strict=True)]
        for rows_of in zip(*held, strict=True)
    ]


@intrinsic
def float_at(_: Any, numbers: Any, place: Any) -> Any:
    """One of an array of float32, their bits, or those of bfloat16."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        base = make_array(signature.args[0])(context, builder, given[0]).data
        return builder.extract_element(floats(builder, base, given[1], ir.VectorType(FLOAT, 1)), LANE(0))

    return types.float32(numbers, types.int64), generate


def floats(builder: Any, base: Any, place: Any, kind: Any) -> Any:
    """The numbers that begin at a place, of float32, its bits, or those of bfloat16."""
    element = base.type.pointee
    if isinstance(element, ir.IntType) and element.width == SHORT:
        lanes = ir.VectorType(LANE, kind.count)
        half = load(builder, base, place, ir.VectorType(element, kind.count))
        half.align = SHORT // 8
        return builder.bitcast(builder.shl(builder.zext(half, lanes), lanes([SHORT] * kind.count)), kind)
    return load(builder, base, place, kind)
