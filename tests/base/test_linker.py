"""Machine code that is kept: by the code alone, not by where it is installed."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from lade.base.compiled import Linker, direct

pytest.importorskip("numba")

SOURCE = """from lade.base.compiled import compiled

@compiled
def doubled(number):
    return 2 * number

@compiled
def add_up(factor, numbers, sums):
    sums[0] = 0
    for number in numbers:
        sums[0] += factor * number
"""


def installed(folder: Path) -> ModuleType:
    """The module of `SOURCE`, as it is imported from a folder."""
    folder.mkdir()
    path = folder / "doubling.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("doubling", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_two_installations_share_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept"
    misses = []
    for name in ("one", "two"):
        module = installed(tmp_path / name)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        machine = Linker(kept).entry(module.doubled)
        assert machine(21) == 42
        misses.append(sum(machine.stats.cache_misses.values()))
    assert misses == [1, 0]


def test_calls_that_look_at_no_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a function for several types, one array tells them apart."""
    module = installed(tmp_path / "one")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    machine = Linker(tmp_path / "kept").entry(module.add_up)
    sums, kinds = np.zeros(1), (np.float64, np.int16)
    for kind in kinds:
        machine(2, np.ones(3, kind), sums)
    add_up = direct(machine)
    for kind in kinds:
        add_up(3, np.arange(4, dtype=kind), sums)
        assert sums[0] == 18
    with pytest.raises(KeyError):
        add_up(3, np.ones(3, np.float32), sums)
    assert len(machine.overloads) == 2


def test_calls_of_a_function_for_one_list_of_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = installed(tmp_path / "one")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    machine = Linker(tmp_path / "kept").entry(module.doubled)
    machine(1)
    assert direct(machine)(21) == 42
    assert len(machine.overloads) == 1
    with pytest.raises(TypeError):
        direct(machine)(object())


def test_calls_that_nothing_tells_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kinds of integers: without looking at them, one would be taken for the other."""
    module = installed(tmp_path / "one")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    machine = Linker(tmp_path / "kept").entry(module.doubled)
    machine(1)
    machine(np.int32(1))
    with pytest.raises(TypeError, match=r"^doubled must be called with one list of types, got \(int64,\), \(int32,\)$"):
        direct(machine)
