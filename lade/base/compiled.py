"""Loops over arrays that run as machine code where numba is installed and has compiled them, and as Python else.

A function marked with `compiled` reads and writes arrays and numbers only. As Python it works on `memoryview`s, whose
elements are Python's own numbers; as machine code on the numpy arrays behind them, without the interpreter lock. Both
ways compute the same. Knows no array and no cache folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])

MARK, OTHER, REORDERS = "__compiled__", "__compiled_as__", "__reorders__"
REORDERING = {"reassoc", "contract", "nsz"}  # flags of LLVM; none that changes what NaN or infinity do
SOURCES = "sources"
# The files on which machine code depends.
LINKED = "addresses.py", "forking.py", "lanevectors.py", "searchvectors.py", "softmaxvectors.py", "vectors.py"
LINKING = Path(__file__), *(Path(__file__).with_name(name) for name in LINKED)

_trial: ContextVar[Mapping[Compiled, Callable[..., Any]]] = ContextVar("lade_trial", default={})  # noqa: B039 - never changed


def compiled(function: Function) -> Function:
    """Mark a function that may run as machine code; it calls no functions but marked ones and `math`."""
    setattr(function, MARK, True)
    return function


def reordering(function: Function) -> Function:
    """The same for a function whose sums machine code may take in any order, so that they are vectorised."""
    setattr(function, REORDERS, True)
    return compiled(function)


def compiled_as(make: Callable[[], Any]) -> Callable[[Function], Function]:
    """The same for a function in whose place machine code calls another one, which is made where numba is installed."""

    def mark(function: Function) -> Function:
        setattr(function, OTHER, make)
        return compiled(function)

    return mark


def viewed(value: Any) -> Any:
    """A numpy array, or a named tuple of them, for the functions as Python; other values as they are.

    What is prepared once for many calls has methods `viewed`, for Python, and `typed`, for machine code.
    """
    if isinstance(value, np.ndarray):
        return memoryview(value)  # type: ignore[arg-type] # numpy says otherwise since 2.3
    if isinstance(value, tuple):
        return type(value)(*map(viewed, value))
    return value.viewed() if hasattr(value, "viewed") else value


class Compiled:
    """A marked function that other code calls: Python until its machine code is ready.

    Attributes:
        machine: the machine code; `None` as long as there is none.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.python = function
        self.machine: Callable[..., Any] | None = None

    @property
    def ready(self) -> bool:
        """Whether a call runs as machine code."""
        return (self.machine or _trial.get().get(self)) is not None

    def __call__(self, *arguments: Any) -> Any:
        machine = self.machine or _trial.get().get(self)
        if machine is None:
            return self.python(*map(viewed, arguments))
        return machine(*[each.typed() if hasattr(each, "typed") else each for each in arguments])


def called_by(functions: Iterable[Any]) -> set[Any]:
    """Marked functions, and all that they call."""
    found: set[Any] = set()
    left = [*functions]
    while left:
        function = left.pop()
        if function not in found:
            found.add(function)
            names = (function.__globals__.get(name) for name in function.__code__.co_names)
            left += [value for value in names if hasattr(value, MARK)]
    return found


@contextmanager
def trial(machines: Mapping[Compiled, Callable[..., Any]]) -> Iterator[None]:
    """Inside, and in this context alone, the functions run as this machine code."""
    token = _trial.set(machines)
    try:
        yield
    finally:
        _trial.reset(token)


def direct(machine: Any) -> Callable[..., Any]:
    """What numba calls once it has looked at the types of all arguments, which takes longer than a small loop does: up
    to 75 microseconds where it is not in the processor's caches.

    Args:
        machine: machine code of `Linker.entry`, compiled for one list of types, or for some that one array tells apart.

    Raises:
        TypeError: no array tells the types apart: a call passes another kind of number than the others.
    """
    known = {types: found.entry_point for types, found in machine.overloads.items()}
    first, *others = known
    if not others:
        only: Callable[..., Any] = known[first]
        return only
    kinds = enumerate(zip(*known, strict=True))
    place = next((place for place, some in kinds if len({*map(_dtype, some)}) == len(known)), None)
    if place is None:
        raise TypeError(f"{machine.__name__} must be called with one list of types, got {', '.join(map(str, known))}")
    by_dtype = {_dtype(types[place]): entry for types, entry in known.items()}
    return lambda *arguments: by_dtype[arguments[place].dtype](*arguments)


def _dtype(kind: Any) -> Any:
    """Of the elements of numba's type of an array; of other types they are no keys."""
    from numba.core.types import Array
    from numba.np.numpy_support import as_dtype

    return as_dtype(kind.dtype) if isinstance(kind, Array) else None


class Linker:
    """Machine code of marked functions, compiled at the first call for its arguments' types, and kept in a folder.

    numba finds what it kept by the path and the time of a function's file: copies of these files lie in the folder, so
    that every installation of the same code shares it.

    Args:
        folder: for nothing else, and another one whenever a function changes.

    Raises:
        ImportError: numba is not installed.
    """

    def __init__(self, folder: Path) -> None:
        import numba  # noqa: F401

        self._folder = folder
        self._known: dict[FunctionType, Any] = {}

    def entry(self, function: Callable[..., Any]) -> Any:
        """The machine code of a function that other code calls."""
        from numba.core import config

        before, config.CACHE_DIR = config.CACHE_DIR, str(self._folder)  # type: ignore[attr-defined]
        try:
            return self._machine(function, cache=True)
        finally:
            config.CACHE_DIR = before  # type: ignore[attr-defined]

    def _called(self, function: Any) -> Any:
        """The machine code of a function that others call, which becomes part of what is kept of them.

        Python and C never call it: ways for them to do so would take a fifth of the time.
        """
        if function not in self._known:
            if hasattr(function, OTHER):
                self._known[function] = getattr(function, OTHER)()
            else:
                self._known[function] = self._machine(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)
        return self._known[function]

    def _machine(self, function: Any, **options: Any) -> Any:
        from numba import njit

        names = {name: function.__globals__.get(name) for name in function.__code__.co_names}
        called = {name: self._called(value) for name, value in names.items() if hasattr(value, MARK)}
        code = function.__code__.replace(co_filename=str(self._source(function)))
        code = FunctionType(code, function.__globals__ | called, function.__name__)
        code.__module__, code.__qualname__ = function.__module__, function.__qualname__
        options["_nrt"] = False  # counting references to arrays would take most of the time
        if hasattr(function, REORDERS):
            options["fastmath"] = REORDERING
        return njit(nogil=True, error_model="numpy", **options)(code)

    def _source(self, function: Any) -> Path:
        """The copy of a function's file."""
        path = self._folder / SOURCES / f"{function.__module__}.py"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_suffix(f".{os.getpid()}")
            new.write_bytes(Path(function.__code__.co_filename).read_bytes())
            new.replace(path)
        return path
