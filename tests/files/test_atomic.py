"""Files that are written in one step: whole, or as they were, with nothing left beside them."""

import errno
import os
from pathlib import Path

import pytest

from lade.files import atomic
from lade.files.atomic import put_in_place


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(b"old")
    return tmp_path / "file"


def only(path: Path, content: bytes) -> bool:
    return path.read_bytes() == content and list(path.parent.iterdir()) == [path]


def test_the_new_content_replaces_the_old(path: Path) -> None:
    put_in_place(path, b"new")
    assert only(path, b"new")


@pytest.mark.skipif(os.name != "posix", reason="links and pipes are POSIX's")
def test_a_link_stays_one(path: Path) -> None:
    link = path.parent / "link"
    link.symlink_to(path.name)
    put_in_place(link, b"new")
    assert link.is_symlink()
    link.unlink()
    assert only(path, b"new")


@pytest.mark.skipif(os.name != "posix", reason="links and pipes are POSIX's")
@pytest.mark.parametrize("linked", [False, True])
def test_what_is_no_regular_file_is_not_replaced(linked: bool, path: Path) -> None:
    """As `--out /dev/stdout`, or a device that others write to."""
    path.unlink()
    os.mkfifo(path)
    given = path.parent / "link" if linked else path
    if linked:
        given.symlink_to(path.name)
    with pytest.raises(OSError, match=f"Not a regular file: '{given}'"):
        put_in_place(given, b"new")
    assert path.is_fifo()
    assert given.is_symlink() == linked
    assert {*path.parent.iterdir()} == {path, given}


def test_a_name_as_long_as_the_file_system_allows(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    put_in_place(path, b"new")
    assert only(path, b"new")


@pytest.mark.parametrize("error", [OSError("No space left on device"), KeyboardInterrupt()], ids=["full", "Ctrl-C"])
@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_what_fails_leaves_the_old_file_alone(
    step: str, error: BaseException, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(os, step, fails)
    with pytest.raises(type(error)):
        put_in_place(path, b"new")
    monkeypatch.undo()
    assert only(path, b"old")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_errors_name_the_file(step: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, step, fails)
    with pytest.raises(OSError, match="No space left on device") as full:
        put_in_place(path, b"new")
    assert str(full.value) == f"[Errno 28] No space left on device: {str(path)!r}"
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError) as missing:
        put_in_place(path.parent / "none" / "file", b"new")
    assert missing.value.filename == str(path.parent / "none" / "file")


def test_a_folder_in_its_place_stays(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="file") as wrong:
        put_in_place(tmp_path / "file", b"new")
    assert ".tmp" not in str(wrong.value)
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_a_file_that_is_being_read_is_replaced_soon(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where a reader keeps a file from being replaced; some tries later it is gone, or it never goes."""
    real, tries = os.replace, []

    def held(source: Path, target: Path) -> None:
        tries.append(target)
        if len(tries) < 3:
            raise PermissionError("used by another process")
        real(source, target)

    monkeypatch.setattr(os, "replace", held)
    monkeypatch.setattr(atomic, "PAUSE", 0.0)
    monkeypatch.setattr(atomic, "ATTEMPTS", 2)
    with pytest.raises(PermissionError):
        put_in_place(path, b"new")
    assert only(path, b"old")
    tries.clear()
    monkeypatch.setattr(atomic, "ATTEMPTS", 3)
    put_in_place(path, b"new")
    assert only(path, b"new")
