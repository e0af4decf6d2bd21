"""Sums of products in the vector registers of this machine. Imported where numba is, by who links machine code.

Of a loop, LLVM itself makes vectors that are half as long as AVX-512's, and no tile with as many sums as fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

FLOAT, INDEX, LANE, POINTER = ir.FloatType(), ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()
READ, SOON, DATA = 0, 3, 1  # of LLVM's prefetch
BYTES = 4  # of a number
SPARE = 5  # registers that hold no sum
SHORT = 16  # bits of a bfloat16
CACHE_LINE = 64  # bytes
UPPER = 0xFFFF0000  # the bits of the second bfloat16 of two, which are those of a float32


@intrinsic(prefer_literal=True)
def multiply_tile(
    _: Any, states: Any, weight: Any, later: Any, size: Any, out: Any, stride: Any, tokens: Any, lines: Any, ahead: Any
) -> Any:
    """Scalar products of states with lines of a weight, each of `size` numbers behind one another.

    The order of a sum depends on its size alone. The last three numbers must be known when this is compiled.

    Args:
        later: further lines, of which the first ones are fetched into the caches; they may lie behind an array's end.
        out: the product of a line with a state stands at state times `stride` plus line.
        tokens, lines: of states and of lines.
        ahead: how many lines are fetched.
    """
    number, height, fetched = (each.literal_value for each in (tokens, lines, ahead))

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        arrays = (make_array(signature.args[place])(context, builder, given[place]).data for place in (0, 1, 2, 4))
        first, weights, coming, goal = arrays
        width, registers = vectors()
        own = rows_from(builder, weights, given[3], range(height))
        awaited = rows_from(builder, coming, given[3], range(fetched))
        together = (registers - SPARE) // height
        for begin in range(0, number, together):
            part = range(begin, min(begin + together, number))
            sums = _sums(builder, rows_from(builder, first, given[3], part), own, awaited, given[3], width)
            for base, row in zip(rows_from(builder, goal, given[5], part), sums, strict=True):
                for line, value in enumerate(row):
                    builder.store(value, builder.gep(base, [INDEX(line)]))
            awaited = []
        return context.get_dummy_value()

    return types.void(states, weight, later, types.int64, out, types.int64, tokens, lines, ahead), generate


@intrinsic(prefer_literal=True)
def multiply_block(
    _: Any, states: Any, block: Any, later: Any, size: Any, out: Any, tokens: Any, lines: Any, ahead: Any
) -> Any:
    """Scalar products of states with the lines of a block, each of `size` numbers, an even number.

    The order of a sum depends on its size alone. The last three numbers must be known when this is compiled.

    Args:
        block: bfloat16: of every line the first two numbers, then of every line the next two.
        later: what is fetched into the caches; it may lie behind an array's end.
        out: of each state all products.
        tokens, lines: of states and of lines.
        ahead: parts of the caches, of `CACHE_LINE` bytes, that are fetched for each two numbers.
    """
    number, height, fetched = (each.literal_value for each in (tokens, lines, ahead))

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        arrays = (make_array(signature.args[place])(context, builder, given[place]).data for place in (0, 1, 2, 4))
        states, numbers, coming, goal = arrays
        width, registers = vectors()
        rows = rows_from(builder, states, given[3], range(number))
        pairs, awaited = (builder.bitcast(each, LANE.as_pointer()) for each in (numbers, coming))
        together = min(height // width, max((registers - SPARE) // number, 1))
        begins = range(0, height, width * together)
        for turn, begin in enumerate(begins):
            places = range(begin, min(begin + width * together, height), width)
            first, last = (fetched * each // len(begins) for each in (turn, turn + 1))  # all turns share in fetching
            soon = awaited, fetched, range(first, last)
            sums = _block_sums(builder, rows, pairs, given[3], places, height, *soon)
            for state, row in enumerate(sums):
                for place, value in zip(places, row, strict=True):
                    store(builder, value, goal, INDEX(state * height + place))
        return context.get_dummy_value()

    return types.void(states, block, later, types.int64, out, tokens, lines, ahead), generate


def _block_sums(
    builder: Any,
    states: Sequence[Any],
    pairs: Any,
    size: Any,
    places: Sequence[int],
    height: int,
    awaited: Any,
    fetched: int,
    own_share: Sequence[int],
) -> list[list[Any]]:
    """Per state the scalar products with the lines at some places of a block, as many as a vector has numbers.

    Args:
        fetched: parts of the caches for each two numbers, as of `multiply_block`.
        own_share: which of these are fetched here.
    """
    kind, lanes = (ir.VectorType(each, vectors()[0]) for each in (FLOAT, LANE))
    add, none = multiply_add(builder, kind), kind([0.0] * kind.count)
    held = [[cgutils.alloca_once_value(builder, none) for _ in places] for _ in states]
    with cgutils.for_range_slice(builder, INDEX(0), size, INDEX(2), intp=INDEX) as (place, _):
        pair, after = builder.lshr(place, INDEX(1)), builder.add(place, INDEX(1))
        base, soon = (builder.mul(pair, INDEX(each)) for each in (height, fetched * CACHE_LINE // BYTES))
        for which in own_share:
            fetch(builder, builder.gep(awaited, [builder.add(soon, INDEX(which * CACHE_LINE // BYTES))]))
        own = [
            [splat(builder, builder.load(builder.gep(state, [at])), kind) for at in (place, after)] for state in states
        ]
        for which, begin in enumerate(places):
            both = load(builder, pairs, builder.add(base, INDEX(begin)), lanes)
            first = builder.bitcast(builder.shl(both, lanes([SHORT] * lanes.count)), kind)
            second = builder.bitcast(builder.and_(both, lanes([UPPER] * lanes.count)), kind)
            for (left, right), row in zip(own, held, strict=True):
                total = builder.call(add, [left, first, builder.load(row[which])])
                builder.store(builder.call(add, [right, second, total]), row[which])
    return [[builder.load(total) for total in row] for row in held]


def splat(builder: Any, value: Any, kind: Any) -> Any:
    """A vector of one number."""
    first = builder.insert_element(kind(ir.Undefined), value, LANE(0))
    return builder.shuffle_vector(first, first, ir.VectorType(LANE, kind.count)([0] * kind.count))


def vectors() -> tuple[int, int]:
    """Numbers of a vector of this machine, and how many registers it has for vectors."""
    has = binding.get_host_cpu_features().get
    if has("avx512f") and has("avx512vl"):
        return 16, 32
    if has("neon"):
        return 4, 32
    return 8 if has("avx") else 4, 16


def rows_from(builder: Any, base: Any, size: Any, places: Sequence[int]) -> list[Any]:
    """Where each of these rows of `size` numbers begins."""
    return [builder.gep(base, [builder.mul(INDEX(place), size)]) for place in places]


def _sums(
    builder: Any, states: Sequence[Any], lines: Sequence[Any], awaited: Sequence[Any], size: Any, width: int
) -> list[list[Any]]:
    """Per state the scalar product with each line: of whole vectors, then of the numbers that are left.

    Args:
        awaited: lines that are fetched meanwhile.
    """
    kind, whole = ir.VectorType(FLOAT, width), builder.and_(size, INDEX(-width))
    none = [[kind([0.0] * width)] * len(lines)] * len(states)
    sums = _added(builder, states, lines, awaited, (INDEX(0), whole, INDEX(width)), none)
    totals = [[_total(builder, vector) for vector in row] for row in sums]
    return _added(builder, states, lines, (), (whole, size, INDEX(1)), totals)


def _added(
    builder: Any,
    states: Sequence[Any],
    lines: Sequence[Any],
    awaited: Sequence[Any],
    bounds: tuple[Any, Any, Any],
    sums: list[list[Any]],
) -> list[list[Any]]:
    """The sums with the products of the numbers at some places added.

    Args:
        bounds: begin, end and step of the places.
        sums: vectors or numbers; at each place, as many numbers are multiplied.
    """
    kind = sums[0][0].type
    add = multiply_add(builder, kind)
    held = [[cgutils.alloca_once_value(builder, value) for value in row] for row in sums]  # LLVM makes them registers
    with cgutils.for_range_slice(builder, *bounds, intp=INDEX) as (place, _):
        across = [load(builder, line, place, kind) for line in lines]
        for line in awaited:
            fetch(builder, builder.gep(line, [place]))
        for state, row in zip(states, held, strict=True):
            own = load(builder, state, place, kind)
            for line, total in zip(across, row, strict=True):
                builder.store(builder.call(add, [own, line, builder.load(total)]), total)
    return [[builder.load(total) for total in row] for row in held]


def multiply_add(builder: Any, kind: Any) -> Any:
    """A function: of numbers or vectors the product of two, and a third one added."""
    name = f"llvm.fmuladd.{f'v{kind.count}' if isinstance(kind, ir.VectorType) else ''}f32"
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)


def load(builder: Any, base: Any, place: Any, kind: Any) -> Any:
    """The numbers that begin at a place; nothing says that vectors are aligned."""
    found = builder.load(builder.bitcast(builder.gep(base, [place]), kind.as_pointer()))
    found.align = BYTES
    return found


def store(builder: Any, vector: Any, base: Any, place: Any) -> None:
    """The other way round."""
    builder.store(vector, builder.bitcast(builder.gep(base, [place]), vector.type.as_pointer())).align = BYTES


def fetch(builder: Any, address: Any) -> None:
    """Ask for what will be read; an address behind an array's end does no harm."""
    kind = ir.FunctionType(ir.VoidType(), [POINTER, LANE, LANE, LANE])
    own = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    builder.call(own, [builder.bitcast(address, POINTER), LANE(READ), LANE(SOON), LANE(DATA)])


def _total(builder: Any, vector: Any) -> Any:
    """The sum of a vector's numbers, by halves."""
    while (half := vector.type.count // 2) > 0:
        masks = [ir.VectorType(LANE, half)([*range(begin, begin + half)]) for begin in (0, half)]
        vector = builder.fadd(*(builder.shuffle_vector(vector, vector, mask) for mask in masks))
    return builder.extract_element(vector, LANE(0))
