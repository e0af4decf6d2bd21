"""Forks: what an operation prints in a child, and whether it ends there. Skips where processes do not fork.

A child has imported all that this process has, so it starts in milliseconds where a new interpreter takes seconds.
"""

import os
import runpy
import select
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryFile
from typing import Any

import pytest

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
PATIENCE = 60.0  # seconds until a child counts as hanging
PROGRAM = 600.0  # the same for one that loads models, on a busy machine too


def ends_in_a_child(operation: Callable[[], object], patience: float = PATIENCE) -> bool:
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
        ready = select.select([reader], [], [], patience)[0]
        return bool(ready) and os.read(reader, 1) == b"+"
    finally:
        os.kill(child, signal.SIGKILL)  # not waited for yet, so the number is still its own
        os.waitpid(child, 0)
        os.close(reader)


@contextmanager
def beside(operation: Callable[[], object]) -> Iterator[None]:
    """A forked child runs an operation while this process goes on; it must get through without an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os._exit(_exit_status(operation))
    try:
        yield
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        status = os.waitpid(child, 0)[1]
    assert status == 0


def run_in_a_child(operation: Callable[[], object], typed: str = "") -> CompletedProcess[str]:
    """What a program of this operation alone would print and return."""
    with ExitStack() as stack:
        given, out, err, status = (stack.enter_context(TemporaryFile("w+")) for _ in range(4))
        given.write(typed)
        given.seek(0)

        def redirected() -> None:
            for number, file in enumerate((given, out, err)):
                os.dup2(file.fileno(), number)
            sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115 - the child's own
            print(_exit_status(operation), file=status, flush=True)
            sys.stdout.flush()
            sys.stderr.flush()

        assert ends_in_a_child(redirected, PROGRAM)
        for file in (out, err, status):
            file.seek(0)
        return CompletedProcess((), int(status.read()), out.read(), err.read())


def _exit_status(operation: Callable[[], object]) -> int:
    """As the interpreter ends."""
    try:
        operation()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - printed, as the interpreter does
        traceback.print_exc()
        return 1
    return 0


def run_script(path: Path, *arguments: str, typed: str = "") -> CompletedProcess[str]:
    """The script as `python PATH ARGUMENTS` runs it, in a child."""

    def main() -> None:
        sys.argv = [str(path), *arguments]
        runpy.run_path(str(path), run_name="__main__")

    return run_in_a_child(main, typed)


def forget_lade() -> None:
    """In a child: the next import of lade executes it anew."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "lade"]:
        del sys.modules[name]


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
