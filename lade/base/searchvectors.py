"""Searching numbers in the vector registers of this machine: the largest of groups, and which are large or equal.

Imported where numba is, by who links machine code (`lade.base.searching` as Python).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from lade.base.lanevectors import floats
from lade.base.vectors import FLOAT, INDEX, LANE, fetch, load, splat, store, vectors

TOGETHER = 64  # groups whose numbers are read in turn: whole cache lines
MOST = 8  # vectors of largest numbers that are held in registers
PAIR = 2  # rows that are read in turn, so that one comparison finds NaN in either


@intrinsic
def largest_of_groups(_: Any, numbers: Any, groups: Any, depth: Any, largest: Any) -> Any:
    """The largest number of each group: group g has the numbers g, g + groups, g + 2 groups ...

    Args:
        numbers: bits of float32 or bfloat16.
        depth: numbers of a group, an even number.
        largest: float32, is written here; where there is NaN, other numbers of the group may be.

    Returns:
        Whether there is NaN.
    """

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        base, goal = (make_array(signature.args[place])(context, builder, given[place]).data for place in (0, 3))
        width, none = vectors()[0], ir.IntType(1)(0)
        found, begin = cgutils.alloca_once_value(builder, none), INDEX(0)
        for count, lanes in ((min(TOGETHER // width, MOST), width), (1, width), (1, 1)):
            end = builder.and_(given[1], INDEX(-count * lanes))
            with cgutils.for_range_slice(builder, begin, end, INDEX(count * lanes), intp=INDEX) as (place, _):
                places = [builder.add(place, INDEX(each * lanes)) for each in range(count)]
                best, nan = _largest(builder, base, given[1], given[2], places, lanes)
                for at, vector in zip(places, best, strict=True):
                    store(builder, vector, goal, at)
                builder.store(builder.or_(builder.load(found), nan), found)
            begin = end
        return builder.load(found)

    return types.boolean(numbers, types.int64, types.int64, largest), generate


def _largest(
    builder: Any, base: Any, groups: Any, depth: Any, places: Sequence[Any], lanes: int
) -> tuple[list[Any], Any]:
    """Vectors of the largest numbers of the groups from some places on, and whether there is NaN."""
    kind, flags = ir.VectorType(FLOAT, lanes), ir.VectorType(LANE, lanes)
    lowest = kind([float("-inf")] * lanes)
    best = [cgutils.alloca_once_value(builder, lowest) for _ in places]
    nan = cgutils.alloca_once_value(builder, flags([0] * lanes))
    with cgutils.for_range_slice(builder, INDEX(0), depth, INDEX(PAIR), intp=INDEX) as (row, _):
        begins = [builder.mul(builder.add(row, INDEX(each)), groups) for each in range(PAIR)]
        for place, largest in zip(places, best, strict=True):
            one, other = (floats(builder, base, builder.add(begin, place), kind) for begin in begins)
            unordered = builder.sext(builder.fcmp_unordered("uno", one, other), flags)
            builder.store(builder.or_(builder.load(nan), unordered), nan)
            for value in (one, other):
                before = builder.load(largest)
                builder.store(builder.select(builder.fcmp_ordered(">", value, before), value, before), largest)
    bits = builder.bitcast(builder.load(nan), ir.IntType(LANE.width * lanes))
    return [builder.load(each) for each in best], builder.icmp_unsigned("!=", bits, bits.type(0))


@intrinsic(prefer_literal=True)
def at_least(_: Any, numbers: Any, place: Any, least: Any, lanes: Any) -> Any:
    """Which numbers from a place on are at least so large: bit n of the numbers' n-th.

    Args:
        numbers: float32.
        lanes: how many, at most 32; must be known when this is compiled.
    """
    count = lanes.literal_value

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        own = make_array(signature.args[0])(context, builder, given[0]).data
        return _which(builder, own, given, ir.VectorType(FLOAT, count), partial(builder.fcmp_ordered, ">="))

    return types.int64(numbers, types.int64, types.float32, lanes), generate


@intrinsic(prefer_literal=True)
def equal_to(_: Any, numbers: Any, place: Any, value: Any, lanes: Any) -> Any:
    """Which numbers from a place on are this one, as bits; arguments as of `at_least`, of int32."""
    count = lanes.literal_value

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        own = make_array(signature.args[0])(context, builder, given[0]).data
        return _which(builder, own, given, ir.VectorType(LANE, count), partial(builder.icmp_signed, "=="))

    return types.int64(numbers, types.int64, types.int32, lanes), generate


def _which(builder: Any, own: Any, given: Sequence[Any], kind: Any, compare: Callable[[Any, Any], Any]) -> Any:
    """The comparisons of the numbers at `given[1]` with `given[2]`, as bits."""
    found = compare(load(builder, own, given[1], kind), splat(builder, given[2], kind))
    return builder.zext(builder.bitcast(found, ir.IntType(kind.count)), INDEX)


@intrinsic
def lowest_bit(_: Any, bits: Any) -> Any:
    """The place of the lowest bit that is set; there must be one."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.cttz(given[0], ir.IntType(1)(1))

    return types.int64(types.int64), generate


@intrinsic
def prefetch(_: Any, numbers: Any, place: Any) -> Any:
    """Ask for the numbers at a place, which will be read soon; it may lie behind the array's end."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        base = make_array(signature.args[0])(context, builder, given[0]).data
        fetch(builder, builder.gep(base, [given[1]]))
        return context.get_dummy_value()

    return types.void(numbers, types.int64), generate
