"""Machine code that is kept: by the code alone, not by where it is installed."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from lade.base.compiled import Linker

pytest.importorskip("numba")

SOURCE = """from lade.base.compiled import compiled

@compiled
def doubled(number):
    return 2 * number
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
