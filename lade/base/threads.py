"""Loops on the threads of PyTorch's own operations; as Python, and where these threads are not found, on one.

What is shared out are units of work: each thread takes the next one until there is none.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from lade.base.compiled import compiled_as

WORKERS, UNITS = 0, 1  # counters: of threads that work, of units that are taken
OPERATIONS = 1 << 16  # that are worth a thread: some 5 microseconds


class Team(NamedTuple):
    """The threads that some calls of `spread` have in common.

    Attributes:
        fork, threads: as `spread` takes them.
        counters: as `counters` makes them.
    """

    fork: int
    threads: int
    counters: Any


def _spread() -> Any:
    from lade.base.forking import spread

    return spread


def _take() -> Any:
    from lade.base.forking import take

    return take


@compiled_as(_spread)
def spread(fork: int, threads: int, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Call a function on several threads with the same arguments."""
    function(*arguments)


@compiled_as(_take)
def take(counters: Any, place: int) -> int:
    """The value of a counter, which is one more afterwards."""
    counters[place] += 1
    return int(counters[place]) - 1


def counters() -> np.ndarray:
    """For one call of `spread`."""
    return np.zeros(2, np.int64)


def threads_for(operations: int) -> int:
    """How many threads so many operations are worth."""
    return min(torch.get_num_threads(), 1 + operations // OPERATIONS) if FORK and not _forked else 1


def _fork() -> int:
    """Address of what runs a function on the threads of PyTorch's own library; 0 where that has another OpenMP."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"))
        return ctypes.cast(library.GOMP_parallel, ctypes.c_void_p).value or 0
    except (AttributeError, OSError):
        return 0


def _in_child() -> None:
    """A forked process has none of the threads, and would wait for them."""
    global _forked
    _forked = True


FORK = _fork()
_forked = False
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
