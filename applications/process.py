"""What a command changes of its process where it is the program: how warnings look, and Ctrl-C at the end."""

from __future__ import annotations

import io
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click


@contextmanager
def program() -> Iterator[None]:
    """Inside, the process is the command's own.

    Where the output cannot write a character, as in the locale "C", it writes "?" instead.
    Behind it, Ctrl-C ends the process and prints nothing; Python alone would print a traceback of what it tidies up.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        with plain_warnings():
            yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_DFL)


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
