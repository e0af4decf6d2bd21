"""Sums of rows in the vector registers of this machine (`lade.base.lanes` as Python).

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
    step: Any,
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
        factors: of each sum, `apart` from those of the one before, `step` from one to the next.
        matrix: float32, their bits, or those of bfloat16; rows begin `stride` from each other.
        out: each sum, `behind` the one before.
        number: how many sums; four at a time take the least time.
        lanes: numbers of a row; must be known when this is compiled.
    """
    wide = lanes.literal_value

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        first, rows, goal = (
            make_array(signature.args[place])(context, builder, given[place]).data for place in (0, 3, 6)
        )
        whole = builder.and_(given[8], INDEX(-SUMS))

        def add(begin: Any, count: int) -> None:
            own = [builder.add(begin, INDEX(each)) for each in range(count)]
            lines = [builder.gep(first, [builder.mul(each, given[1])]) for each in own]
            goals = [builder.gep(goal, [builder.mul(each, given[7])]) for each in own]
            width, registers = vectors()
            width = min(width, wide)
            together = width * min(wide // width, max((registers - count - SPARE) // (count * CHAINS), 1))
            for place in range(0, wide, together):
                places = range(place, min(place + together, wide), width)
                sums = _lane_sums(builder, lines, given[2], rows, given[4], given[5], places, width)
                for base, row in zip(goals, sums, strict=True):
                    for at, value in zip(places, row, strict=True):
                        store(builder, value, base, INDEX(at))

        with cgutils.for_range_slice(builder, INDEX(0), whole, INDEX(SUMS), intp=INDEX) as (begin, _):
            add(begin, SUMS)
        with cgutils.for_range_slice(builder, whole, given[8], INDEX(1), intp=INDEX) as (begin, _):
            add(begin, 1)
        return context.get_dummy_value()

    integer = types.int64
    arguments = factors, integer, integer, matrix, integer, integer, out, integer, integer, lanes
    return types.void(*arguments), generate


def _lane_sums(
    builder: Any,
    factors: Sequence[Any],
    step: Any,
    rows: Any,
    stride: Any,
    size: Any,
    places: Sequence[int],
    width: int,
) -> list[list[Any]]:
    """Per line of factors the sums of the rows at some places, as many as a vector has numbers: those of every second
    row, and the others."""
    kind, whole = ir.VectorType(FLOAT, width), builder.and_(size, INDEX(-CHAINS))
    add, none = multiply_add(builder, kind), kind([0.0] * width)
    held = [[[cgutils.alloca_once_value(builder, none) for _ in places] for _ in factors] for _ in range(CHAINS)]

    def take(line: Any, chain: Any) -> None:
        base, at = builder.mul(line, stride), [builder.mul(line, step)]
        own = [splat(builder, builder.load(builder.gep(each, at)), kind) for each in factors]
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
