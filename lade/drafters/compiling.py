"""Machine code of the engine's loops: compiled once per machine, kept in the cache folder, loaded in the background.

Until it is there, and where numba is not installed or the environment says LADE_COMPILED=0, the same functions run as
Python and build the same trees; logits are read by torch. A process of its own compiles, so that decoding goes on.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lade.base.compiled import LINKING, SOURCES, Compiled, Linker, called_by, direct, trial
from lade.base.environment import lenient_switch
from lade.base.locks import fork_safe_lock
from lade.base.shown import first_line
from lade.core.readout import READ_ROWS
from lade.drafters.exercise import exercise
from lade.drafters.steps import DRAFT, LEARN
from lade.files.cachecontent import mark_used
from lade.files.cachefolder import cache_folder
from lade.memory.corpora import COUNT_STRINGS
from lade.memory.regions import REINDEX
from lade.memory.rowmemory import ADD_FOLLOWER, READ_TEXT
from lade.memory.table import FORGET
from lade.memory.texttables import READ
from lade.target.fused.loops import NORMALISE, ROTATE
from lade.target.fused.products import MULTIPLY
from lade.target.fused.stack import COMPUTE
from lade.target.rowloops import ATTEND
from lade.weights.blockloops import MULTIPLY_BLOCKS

OF_FORWARDS = READ_ROWS, NORMALISE, ROTATE, MULTIPLY, MULTIPLY_BLOCKS, ATTEND, COMPUTE
OF_DRAFTS = READ_TEXT, READ, COUNT_STRINGS, ADD_FOLLOWER, DRAFT, LEARN, REINDEX, FORGET
ENTRIES = *OF_DRAFTS, *OF_FORWARDS
HALVES = OF_DRAFTS, OF_FORWARDS  # each takes half of the time
FOLDER, DONE, LOCK = "compiled", "done", "lock"
SWITCH = "LADE_COMPILED"
LINE = "from lade.drafters.compiling import compile_alone; compile_alone()"
OTHER_HALF = "from lade.drafters.compiling import HALVES, compile_entries; compile_entries(HALVES[1])"

_log = logging.getLogger(__name__)
_lock, _loading = fork_safe_lock(), fork_safe_lock()
_worker: threading.Thread | None = None


def begin() -> None:
    """Load the machine code in the background, compiled before where it is missing. A second call does nothing."""
    global _worker
    with _lock:
        if _worker is None and all(entry.machine is None for entry in ENTRIES) and possible():
            _worker = threading.Thread(target=_load_or_compile, name="lade-compiling", daemon=True)
            _worker.start()


def wait() -> None:
    """Until the machine code that `begin` was asked for is loaded, or could not be."""
    if _worker is not None:
        _worker.join()


def running() -> bool:
    """Whether it is compiled or loaded at the moment."""
    return _worker is not None and _worker.is_alive()


def compiles() -> bool:
    """Whether it is compiled at the moment, which takes minutes, not only loaded."""
    with suppress(OSError):  # the cache folder cannot be read: nothing is compiled for long
        return running() and not is_done(machine_folder())
    return False


def load(checked: bool = False) -> None:
    """Load the machine code now; what is missing is compiled in this process.

    Args:
        checked: whether each call compares the types of its arguments with those that were compiled for, as tests do:
            another type is a defect. Else they are taken for right (`lade.base.compiled.direct`).

    Raises:
        ImportError: numba is not installed.
        OSError: the cache folder cannot be written.
    """
    machines = compile_entries(ENTRIES)
    folder = machine_folder()
    note_done(folder)
    mark_used(folder)
    for entry, machine in reversed(machines.items()):  # lists first: others take them
        machine.disable_compile()  # another type of argument is no reason to compile in a step
        quick = direct(machine)  # fails in tests, too, where the types of calls differ
        entry.machine = machine if checked else quick


def compile_entries(entries: Iterable[Compiled]) -> dict[Compiled, Any]:
    """The machine code of some entries, kept in the folder; compiled in this process where it is missing."""
    folder = machine_folder()
    folder.mkdir(parents=True, exist_ok=True)
    linker = Linker(folder)
    machines = {entry: linker.entry(entry.python) for entry in entries}
    with trial(machines):
        exercise()
    return machines


def provide() -> bool:
    """Compile what is missing in a process of its own; where another one compiles already, wait until it has.

    Returns:
        Whether the machine code lies there.
    """
    folder = machine_folder()
    if not is_done(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _compile_apart()
        with FileLock(folder / LOCK):
            pass
    return is_done(folder)


def compile_alone() -> None:
    """What the process that compiles does, which may outlive the one that started it: nothing, if there is another."""
    folder = machine_folder()
    with suppress(Timeout), FileLock(folder / LOCK, timeout=0):
        if not is_done(folder):
            _compile_halves()
            load()


def machine_folder() -> Path:
    """The cache folder's part for this version of the functions, of what links them, of Python and of numba."""
    digest = hashlib.blake2b(f"{sys.version} {version('numba')}".encode(), digest_size=8)
    functions = called_by(entry.python for entry in ENTRIES)
    for path in sorted({*LINKING, *(Path(function.__code__.co_filename) for function in functions)}):
        digest.update(path.read_bytes())
    return cache_folder() / FOLDER / digest.hexdigest()


def possible() -> bool:
    """Whether there may be machine code: numba is installed, and the environment does not forbid it."""
    if not lenient_switch(SWITCH, default=True):
        return False
    try:
        version("numba")
    except PackageNotFoundError:
        return False
    return True


def is_compiled() -> bool:
    """Whether the machine code lies in the cache folder; not so in one that cannot be read."""
    with suppress(OSError):
        return possible() and is_done(machine_folder())
    return False


def is_done(folder: Path) -> bool:
    """Whether all machine code lies in a folder, and where numba looks for it: not so in a copy of the folder."""
    try:
        return (folder / DONE).read_bytes() == _place(folder)
    except FileNotFoundError:
        return False


def note_done(folder: Path) -> None:
    """Note that all machine code lies in a folder."""
    (folder / DONE).write_bytes(_place(folder))


def _place(folder: Path) -> bytes:
    """By what numba finds machine code: where the copies of the functions' files lie, and their times."""
    times = sorted(f"{path.name} {path.stat().st_mtime_ns}" for path in (folder / SOURCES).glob("*.py"))
    return os.fsencode("\n".join([str(folder.resolve()), *times]))


def _load_or_compile() -> None:
    try:
        if not provide():
            raise RuntimeError("another process made none")
        with _loading:
            load()
    except Exception as error:  # noqa: BLE001 - whatever fails, the functions run as Python
        _log.warning("lade: drafts take longer to find, as there is no machine code for it (%s)", first_line(error))


@atexit.register
def _load_no_more() -> None:
    """At the end of the process: wait for the thread that loads, and keep it from beginning to.

    Python ends a thread that comes back from C++, as from torch, once the interpreter is ending; C++ then aborts.
    """
    with suppress(KeyboardInterrupt):
        _loading.acquire()


def _compile_apart() -> None:
    """In a process of its own, of low priority, with the modules that this one has."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), SWITCH: "0"}
    command = [sys.executable, "-c", LINE]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if os.name == "posix":
        command = ["nice", *command]
    subprocess.run(command, env=environment, check=True, **quiet)  # type: ignore[call-overload]


def _compile_halves() -> None:
    """Side by side, in this process and in one more; what the other one fails at is compiled by whoever loads it."""
    with subprocess.Popen([sys.executable, "-c", OTHER_HALF]):
        compile_entries(HALVES[0])
