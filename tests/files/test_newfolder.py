"""Folders that appear whole or not at all, with nothing left beside them."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from lade.files import newfolder
from lade.files.newfolder import check_space, new_folder


def test_the_folder_appears_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "parent" / "folder"
    with new_folder(path) as fresh:
        (fresh / "sub").mkdir()
        (fresh / "sub" / "file").write_text("whole")
        assert not path.exists()
    assert (path / "sub" / "file").read_text() == "whole"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError("No space left on device"), KeyboardInterrupt()], ids=["full", "Ctrl-C"])
@pytest.mark.parametrize("step", ["block", "fsync", "rename"])
def test_what_fails_leaves_nothing(
    step: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> None:
        raise error

    def fill() -> None:
        with new_folder(tmp_path / "folder") as fresh:
            (fresh / "file").write_text("half")
            if step == "block":
                raise error

    if step != "block":
        monkeypatch.setattr(os, step, fails)
    with pytest.raises(type(error)):
        fill()
    monkeypatch.undo()
    assert not any(tmp_path.iterdir())


def test_another_process_that_was_faster_keeps_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with new_folder(path) as fresh:
        (fresh / "file").write_text("ours")
        path.mkdir()
        (path / "file").write_text("theirs")
    assert (path / "file").read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_in_its_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("a file")
    with pytest.raises(OSError, match="folder"), new_folder(tmp_path / "folder"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_disk_without_room_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def usage(path: Path) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(free=10**8)

    monkeypatch.setattr(newfolder.shutil, "disk_usage", usage)
    check_space(tmp_path / "not" / "there", 10**8)
    with pytest.raises(OSError, match="not/there must have 200 MB free, got 100 MB; `lade cache` shows"):
        check_space(tmp_path / "not" / "there", 2 * 10**8)
    assert asked == [tmp_path, tmp_path]
