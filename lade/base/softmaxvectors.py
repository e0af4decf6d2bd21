"""Softmax of scores that come a tile of keys at a time, in vector registers (`lade.base.softmax` as Python).

Imported where numba is, by who links machine code.
"""

from __future__ import annotations

from math import inf, nan
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from lade.base.softmax import FARTHEST, LARGEST, PER_OCTAVE, SHRINK, TERMS, TOTAL
from lade.base.vectors import FLOAT, INDEX, LANE, SHORT, UPPER, load, multiply_add, store, vectors

EXPONENT, BIAS = 23, 127  # of a float32: where its bits begin, and its value for 2^0
NEARLY_HALF = 0x7FFF  # of the bits that a bfloat16 lacks


@intrinsic
def weigh(_: Any, scores: Any, keys: Any, lanes: Any, known: Any, short: Any) -> Any:
    """A tile's scores become weights: exp of their differences to the largest score that is known.

    Args:
        scores: [keys, lanes] float32; the lanes are a multiple of every machine's vectors (16).
        known: of all keys before, as `lade.base.softmax` has it; of these, too, afterwards.
        short: whether weights are rounded to bfloat16, as PyTorch's attention does, once their sum is taken.
    """

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        numbers, state = (make_array(signature.args[place])(context, builder, given[place]).data for place in (0, 3))
        count, across, kind = given[1], given[2], ir.VectorType(FLOAT, vectors()[0])
        rows = [builder.gep(state, [builder.mul(across, INDEX(row))]) for row in (LARGEST, TOTAL, SHRINK)]
        with cgutils.for_range_slice(builder, INDEX(0), across, INDEX(kind.count), intp=INDEX) as (lane, _):
            own = builder.gep(numbers, [lane])
            before = load(builder, rows[LARGEST], lane, kind)
            largest = _largest(builder, own, count, across, before)
            seen = builder.fcmp_ordered(">", largest, kind([-inf] * kind.count))
            base = builder.select(seen, largest, kind([0.0] * kind.count))
            shrink = exponential(builder, builder.fsub(before, base))
            total = builder.fmul(load(builder, rows[TOTAL], lane, kind), shrink)
            total = _weights(builder, own, count, across, base, total, given[4])
            for row, value in ((LARGEST, largest), (TOTAL, total), (SHRINK, shrink)):
                store(builder, value, rows[row], lane)
        return context.get_dummy_value()

    return types.void(scores, types.int64, types.int64, known, types.boolean), generate


def _largest(builder: Any, scores: Any, keys: Any, across: Any, before: Any) -> Any:
    """Of each lane; no number is larger than NaN."""
    held = cgutils.alloca_once_value(builder, before)
    with cgutils.for_range_slice(builder, INDEX(0), keys, INDEX(1), intp=INDEX) as (key, _):
        value, largest = load(builder, scores, builder.mul(key, across), before.type), builder.load(held)
        builder.store(builder.select(builder.fcmp_ordered(">", value, largest), value, largest), held)
    return builder.load(held)


def _weights(builder: Any, scores: Any, keys: Any, across: Any, base: Any, total: Any, short: Any) -> Any:
    """Write the weights, and add them to their sums."""
    held = cgutils.alloca_once_value(builder, total)
    with cgutils.for_range_slice(builder, INDEX(0), keys, INDEX(1), intp=INDEX) as (key, _):
        place = builder.mul(key, across)
        weight = exponential(builder, builder.fsub(load(builder, scores, place, base.type), base))
        builder.store(builder.fadd(builder.load(held), weight), held)
        store(builder, builder.select(short, rounded(builder, weight), weight), scores, place)
    return builder.load(held)


def exponential(builder: Any, x: Any) -> Any:
    """exp of numbers that are not positive, or NaN (`lade.base.softmax.exponential`)."""
    kind, lanes = x.type, ir.VectorType(LANE, x.type.count)

    def every(value: Any) -> Any:
        return kind([float(value)] * kind.count)

    add, near = multiply_add(builder, kind), builder.fcmp_ordered(">", x, every(FARTHEST))
    octaves = builder.fmul(builder.select(near, x, every(FARTHEST)), every(PER_OCTAVE))
    whole = builder.fptosi(builder.fsub(octaves, every(0.5)), lanes)
    rest, value = builder.fsub(octaves, builder.sitofp(whole, kind)), every(TERMS[0])
    for term in TERMS[1:]:
        value = builder.call(add, [value, rest, every(term)])
    power = builder.shl(builder.add(whole, lanes([BIAS] * kind.count)), lanes([EXPONENT] * kind.count))
    found = builder.select(near, builder.fmul(value, builder.bitcast(power, kind)), every(0.0))
    return builder.select(builder.fcmp_unordered("uno", x, x), every(nan), found)


def rounded(builder: Any, numbers: Any) -> Any:
    """Numbers as float32 of the nearest bfloat16, of two equally near ones the even one."""
    lanes = ir.VectorType(LANE, numbers.type.count)

    def every(value: int) -> Any:
        return lanes([value] * lanes.count)

    bits = builder.bitcast(numbers, lanes)
    odd = builder.and_(builder.lshr(bits, every(SHORT)), every(1))
    near = builder.add(builder.add(bits, every(NEARLY_HALF)), odd)
    return builder.bitcast(builder.and_(near, every(UPPER)), numbers.type)
