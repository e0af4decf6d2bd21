"""What a command changes of its process where it is the program: how warnings look, and what signals do."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def program() -> Iterator[None]:
    """Inside, the process is the command's own.

    Where the output cannot write a character, as in the locale "C", it writes "?" instead.
    A signal to end removes what is unfinished, as Ctrl-C does.
    Behind it, Ctrl-C ends the process and prints nothing; Python alone would print a traceback of what it tidies up.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        with plain_warnings(), tidy_end():
            yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def tidy_end() -> Iterator[None]:
    """A signal that would end the process at once ends the block first; the next one does not wait for that."""
    received: list[int] = []

    def end(number: int, _: object) -> None:
        received.append(number)
        for each in replaced:
            signal.signal(each, signal.SIG_DFL)
        sys.exit(128 + number)

    main = threading.current_thread() is threading.main_thread()
    replaced = [each for each in ENDING if main and signal.getsignal(each) == signal.SIG_DFL]  # not those ignored
    for each in replaced:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in replaced:
            signal.signal(each, signal.SIG_DFL)
        if received:
            os.kill(os.getpid(), received[0])  # so that whoever waits sees the signal


@contextmanager
def plain_warnings() -> Iterator[None]:
    """lade's own warnings are one line each, and each is shown once; those of others stay as they are."""
    before, told = warnings.showwarning, set[str]()

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if category.__module__.partition(".")[0] != "lade":
            before(message, category, *place, **more)
        elif str(message) not in told:
            told.add(str(message))
            click.echo(f"warning: {message}", err=True)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before
