"""`lade serve --replicas`: what becomes of its options."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lade.applications.cli import main
from lade.applications.ray_serve import start
from lade.applications.serve import command


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the command would start."""
    found: list[Any] = []
    monkeypatch.setattr(start, "find_spec", lambda name: object())
    monkeypatch.setattr(start, "serve_replicas", lambda *arguments: found.extend(arguments))
    monkeypatch.setattr(command, "serve", lambda *arguments: found.append("one"))
    return found


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["serve", "stories260K", *arguments])


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (["--replicas", "2"], [2, 2]),
        (["--replicas", "2", "--max-replicas", "4"], [2, 4]),
        (["--max-replicas", "3"], [1, 3]),
    ],
)
def test_the_number_of_replicas(asked: list[Any], tmp_path: Path, options: list[str], numbers: list[int]) -> None:
    (tmp_path / "keys").write_text("a-key-0123456789")
    assert run(*options, "--max-batch", "3", "--api-key-file", str(tmp_path / "keys")).exit_code == 0
    settings, build, path, loading, *found = asked
    assert found == numbers
    assert (settings.slots, settings.tenant_pools, path, loading.warm) == (3, True, "stories260K", False)
    assert build is command.load_service


def test_one_replica_needs_no_ray(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "find_spec", lambda name: None)
    assert run("--replicas", "1").exit_code == 0
    assert asked == ["one"]


def test_fewer_at_most_than_at_least(asked: list[Any]) -> None:
    done = run("--replicas", "3", "--max-replicas", "2")
    assert done.exit_code == 2
    assert "must be at least --replicas, 3, got 2" in done.output
    assert not asked


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "find_spec", lambda name: None)
    done = run("--replicas", "2")
    assert done.exit_code == 1
    assert "lade serve --replicas needs ray; pip install 'lade-decoding[serve,ray]'" in done.output
