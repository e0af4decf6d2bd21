"""Locks that are free in a forked process: the thread that held one in the parent does not exist in the child.

The child finds the guarded data as they were at the fork, maybe in the middle of a change. So every change is made in
steps between which the data are consistent. Knows nothing of the data.
"""

from __future__ import annotations

import os
import threading
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

Lock = Any  # a `threading.RLock`, which is no type

_made: WeakSet[Lock] = WeakSet()


def fork_safe_lock() -> Lock:
    """A re-entrant lock, free in a forked process unless the forking thread held it."""
    lock = threading.RLock()
    _made.add(lock)
    return lock


class ModelLocks:
    """A lock per model, held weakly: slow work on one model does not block others."""

    def __init__(self) -> None:
        self._locks: WeakKeyDictionary[Any, Lock] = WeakKeyDictionary()

    def of(self, model: Any) -> Lock:
        lock = self._locks.get(model)
        return self._locks.setdefault(model, fork_safe_lock()) if lock is None else lock


def _free_all() -> None:
    """In the child: its only thread keeps the locks that it holds."""
    for lock in list(_made):
        if lock.acquire(blocking=False):
            lock.release()
        else:
            lock._at_fork_reinit()  # as the standard library does with its own locks


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_free_all)
