"""Ctrl-C while an answer is decoded: it stops the answer, not the program."""

from __future__ import annotations

import signal
import threading
from types import TracebackType
from typing import Any


class Interrupt:
    """Inside, SIGINT sets `asked` and raises nothing, so that no step of the model is cut in two.

    Outside of the main thread, which alone gets signals, `asked` stays false.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> Interrupt:
        self.asked = False
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._before)

    def _ask(self, number: int, frame: Any) -> None:
        self.asked = True
