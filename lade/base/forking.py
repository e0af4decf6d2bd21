"""Machine code that runs on several threads. Imported where numba is installed, by who links machine code.

The threads are those of PyTorch's own operations: `GOMP_parallel`, by which compilers run OpenMP's parallel regions,
is called with a function of ours. numba's own threads would be further ones, which wait while PyTorch's spin.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

POINTER, INT32 = ir.IntType(8).as_pointer(), ir.IntType(32)


@intrinsic
def spread(typing: Any, fork: Any, threads: Any, function: Any, arguments: Any) -> Any:
    """Call a function on every thread of a region, all with the same arguments; for one thread no region is begun.

    Args:
        fork: address of `GOMP_parallel`.
        threads: at most.
        function: marked, returns nothing.
        arguments: a tuple.
    """
    found = function.get_call_type(typing, tuple(arguments), {})

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        address, number, _, values = given
        data = cgutils.alloca_once_value(builder, values)
        region = _region(context, builder.module, function.dispatcher.overloads[found.args], arguments)
        kind = ir.FunctionType(ir.VoidType(), [POINTER, POINTER, INT32, INT32])
        called = builder.inttoptr(address, kind.as_pointer())
        passed = [builder.bitcast(value, POINTER) for value in (region, data)]
        with builder.if_else(builder.icmp_signed(">", number, number.type(1))) as (several, alone):
            with several:
                builder.call(called, [*passed, builder.trunc(number, INT32), INT32(0)])
            with alone:
                builder.call(region, passed[1:])
        return context.get_dummy_value()

    return types.void(fork, threads, function, arguments), generate


def _region(context: Any, module: Any, compiled: Any, arguments: Any) -> Any:
    """A C function that calls a compiled one with the arguments at an address."""
    context.active_code_library.add_linking_library(compiled.library)
    callee = context.declare_function(module, compiled.fndesc)
    region = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER]), f"region.{compiled.fndesc.mangled_name}")
    region.linkage = "internal"
    builder = ir.IRBuilder(region.append_basic_block())
    whole = builder.load(builder.bitcast(region.args[0], context.get_value_type(arguments).as_pointer()))
    values = cgutils.unpack_tuple(builder, whole)
    fndesc = compiled.fndesc
    context.call_conv.call_function(builder, callee, fndesc.restype, fndesc.argtypes, values)
    builder.ret_void()
    return region


@intrinsic
def take(typing: Any, counters: Any, place: Any) -> Any:
    """The value of an int64 counter, which is one more afterwards; for several threads at once."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        data = make_array(counters)(context, builder, given[0]).data
        return builder.atomic_rmw("add", builder.gep(data, [given[1]]), ir.IntType(64)(1), "monotonic")

    return types.int64(counters, place), generate
