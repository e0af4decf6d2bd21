"""Forks, for tests of what a child finds: whether an operation ends there. Skips where processes do not fork."""

import os
import select
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
PATIENCE = 60.0  # seconds until a child counts as hanging


def ends_in_a_child(operation: Callable[[], object]) -> bool:
    """Whether a forked child gets through it without an error, within some time."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # since Python 3.12, of forks beside threads
        child = os.fork()
    if child == 0:
        try:
            operation()
            os.write(writer, b"+")
        except BaseException:  # noqa: BLE001 - nothing may get out of the child
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)
    try:
        ready = select.select([reader], [], [], PATIENCE)[0]
        return bool(ready) and os.read(reader, 1) == b"+"
    finally:
        os.kill(child, signal.SIGKILL)  # not waited for yet, so the number is still its own
        os.waitpid(child, 0)
        os.close(reader)


@contextmanager
def held_elsewhere(*locks: Any) -> Iterator[None]:
    """Inside, another thread holds these locks."""
    holds, done = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.acquire()
        holds.set()
        done.wait()
        for lock in locks:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()
