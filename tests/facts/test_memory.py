"""The memory of the machine, or of the container that a process runs in."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from lade.facts import memory


@pytest.fixture
def limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Files of a container's limit, not there yet, on a machine of 16 GB of which 6 are available."""
    paths = tmp_path / "memory.max", tmp_path / "limit_in_bytes"
    monkeypatch.setattr(memory, "LIMITS", paths)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=16 * 10**9, available=6 * 10**9))
    return paths


def test_without_a_container(limits: tuple[Path, Path]) -> None:
    assert (memory.total(), memory.available()) == (16 * 10**9, 6 * 10**9)


@pytest.mark.parametrize("which", [0, 1])
def test_a_containers_limit_counts(which: int, limits: tuple[Path, Path]) -> None:
    limits[which].write_text("2000000000\n")
    assert (memory.total(), memory.available()) == (2 * 10**9, 2 * 10**9)


@pytest.mark.parametrize("told", ["max\n", "9223372036854771712\n", ""])
def test_a_container_without_a_limit(told: str, limits: tuple[Path, Path]) -> None:
    for path in limits:
        path.write_text(told)
    assert (memory.total(), memory.available()) == (16 * 10**9, 6 * 10**9)


def test_this_machine() -> None:
    assert memory.total() >= memory.available() > 0
