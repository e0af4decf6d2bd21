"""A time limit; only in the main thread, on systems with interval timers."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


class Hang(BaseException):
    """The time limit is exceeded. A BaseException, so that `except Exception` does not catch it."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise Hang after this many seconds."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: Any) -> None:
        raise Hang(f"it took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
