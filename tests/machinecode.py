"""Machine code of the drafting loops for a session of tests; without it they run as Python.

It lies in pytest's cache folder, from run to run. What is missing is compiled only where many tests are to run, which
saves more time than it costs. LADE_COMPILED=0 keeps all tests on Python, LADE_COMPILED=1 compiles for any number.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# What the user asks for, before `isolation` sets it for the programs that tests start, the workers of xdist among them.
ASKED = os.environ.setdefault("TESTS_COMPILED", os.environ.get("LADE_COMPILED", ""))
MANY = 1000  # tests
FOLDER = "machine-code"
LINE = "from lade.drafters.compiling import compile_alone; compile_alone()"


def begin(config: pytest.Config) -> None:
    """Start to compile while the tests of a whole run are collected, where nothing is kept."""
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not hasattr(config, "workerinput")
    folder = _folder(config)
    if folder is None or not whole or any(folder.glob("*/*/done")):
        return
    compiler = subprocess.Popen([sys.executable, "-c", LINE], env=os.environ | {"LADE_CACHE": str(folder)})

    def end() -> None:
        compiler.kill()
        compiler.wait()

    config.add_cleanup(end)


def _folder(config: pytest.Config) -> Path | None:
    """Where it lies; `None` if there is to be none."""
    cache = getattr(config, "cache", None)  # none with -p no:cacheprovider
    return None if ASKED == "0" or cache is None or find_spec("numba") is None else cache.mkdir(FOLDER)


def load(config: pytest.Config, tests: int) -> None:
    """Load the machine code that lies there; compile it first where so many tests are to run."""
    folder = _folder(config)
    if folder is None:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LADE_CACHE", str(folder))
        _load(compile_it=ASKED == "1" or tests >= MANY)


def _load(compile_it: bool) -> None:
    from lade.drafters import compiling

    folder = compiling.machine_folder()
    if not compiling.is_done(folder):
        if not compile_it:
            return
        compiling.provide()  # of the workers of a run, one compiles
        _remove_others(folder)
    compiling.load(checked=True)


def _remove_others(folder: Path) -> None:
    """The machine code of former versions."""
    for other in folder.parent.iterdir():
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)


@contextmanager
def unloaded() -> Iterator[None]:
    """The drafting loops run as Python inside."""
    from lade.drafters.compiling import ENTRIES

    machines = [entry.machine for entry in ENTRIES]
    for entry in ENTRIES:
        entry.machine = None
    try:
        yield
    finally:
        for entry, machine in zip(ENTRIES, machines, strict=True):
            entry.machine = machine


def both_ways(entry: Any) -> Any:
    """A fixture: tests run with a loop's machine code, where it is loaded, and as Python."""

    @pytest.fixture(params=[False, True], ids=["python", "machine"])
    def machine(request: pytest.FixtureRequest) -> object:
        if request.param:
            if not entry.ready:
                pytest.skip("the loops are not compiled in this run: LADE_COMPILED=1 compiles them")
            yield
        else:
            with unloaded():
                yield

    return machine
