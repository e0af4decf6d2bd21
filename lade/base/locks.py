"""Locks that are free again in a forked process: the thread that held one in the parent is not there to let go of it.

What such a lock guards is found in the child as it stood at the fork, maybe in the middle of a change. So every change
of it is made in steps between which it is sound. Knows nothing of what is guarded.
"""

from __future__ import annotations

import os
import threading
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

Lock = Any  # a `threading.RLock`, which is no type

_made: WeakSet[Lock] = WeakSet()


def fork_safe_lock() -> Lock:
    """A lock that its holder may take again, and whose holder's death by a fork sets it free."""
    lock = threading.RLock()
    _made.add(lock)
    return lock


class ModelLocks:
    """A lock per model, gone with it: what takes long for one model keeps no other one waiting."""

    def __init__(self) -> None:
        self._locks: WeakKeyDictionary[Any, Lock] = WeakKeyDictionary()

    def of(self, model: Any) -> Lock:
        lock = self._locks.get(model)
        return self._locks.setdefault(model, fork_safe_lock()) if lock is None else lock


def _free_all() -> None:
    """In the child: what its one thread holds, it goes on holding."""
    for lock in list(_made):
        if lock.acquire(blocking=False):
            lock.release()
        else:
            lock._at_fork_reinit()  # what the standard library gives its own locks


if hasattr(os, "register_at_fork"):  # no process of Windows forks
    os.register_at_fork(after_in_child=_free_all)
