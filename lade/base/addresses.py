"""Arrays of machine code that lie at addresses. Imported where numba is installed, by who links machine code.

numba's own lists run Python code whenever they are passed, where the exception of a signal (Ctrl-C) is lost, and count
references. A table of addresses is passed as any other array; who passes it keeps what lies there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numba import from_dtype, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array


def tuple_at(kind: type, elements: Sequence[str]) -> Any:
    """A function for machine code: a named tuple of arrays, of which a table says where they lie.

    Args:
        kind: of named tuple.
        elements: the dtype of each array.

    Returns:
        Of the table (int64: of each array of each tuple its address and its number of elements) and of the place of a
        tuple in it.
    """
    arrays = [*map(_array_of, elements)]

    @intrinsic
    def at(_: Any, table: Any, place: Any) -> Any:
        whole = types.NamedTuple(arrays, kind)
        return whole(table, types.intp), _tuple_of(arrays, whole)

    return at


def tuple_by(kind: type, elements: Mapping[str, Sequence[str]]) -> Any:
    """The same where dtypes depend on that of another array.

    Args:
        elements: the dtype of each array, by the other one's.

    Returns:
        Of the table, the place and the other array.
    """
    known = {from_dtype(np.dtype(name)): [*map(_array_of, own)] for name, own in elements.items()}

    @intrinsic
    def at(_: Any, table: Any, place: Any, other: Any) -> Any:
        arrays = known[other.dtype]
        whole = types.NamedTuple(arrays, kind)
        return whole(table, types.intp, other), _tuple_of(arrays, whole)

    return at


def _tuple_of(arrays: Sequence[Any], whole: Any) -> Callable[..., Any]:
    """What numba calls to read one: of a table and a place, the first two of what is given."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        fields = make_array(signature.args[0])(context, builder, given[0]).data
        first = builder.mul(given[1], context.get_constant(types.intp, 2 * len(arrays)))

        def field(number: int) -> Any:
            return builder.load(builder.gep(fields, [builder.add(first, first.type(number))]))

        made = [_array(context, builder, array, field(2 * i), field(2 * i + 1)) for i, array in enumerate(arrays)]
        return context.make_tuple(builder, whole, made)

    return generate


def _array_of(element: str) -> Any:
    return types.Array(from_dtype(np.dtype(element)), 1, "C")


def _array(context: Any, builder: Any, kind: Any, address: Any, size: Any) -> Any:
    array = make_array(kind)(context, builder)
    bytes_each = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    data = builder.inttoptr(address, array.data.type)
    shape, strides = cgutils.pack_array(builder, [size]), cgutils.pack_array(builder, [bytes_each])
    populate_array(array, data, shape, strides, bytes_each, None)
    return array._getvalue()
