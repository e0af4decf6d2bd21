"""The cache folder and the checked files in it. What happens with broken ones is in `test_warm`."""

from pathlib import Path

import pytest
import safetensors.torch
import torch

from lade.files.cachefolder import cache_folder
from lade.files.safefile import read, write

TENSORS = {"one": torch.arange(6.0).view(2, 3), "two": torch.tensor([1, 2], dtype=torch.int32)}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file.safetensors"
    write(path, TENSORS, {"key": "value"})
    tensors, metadata = read(path)
    assert metadata == {"key": "value"}
    assert sorted(tensors) == ["one", "two"]
    for name, tensor in TENSORS.items():
        assert torch.equal(tensors[name], tensor)
        assert tensors[name].dtype == tensor.dtype
    assert list(path.parent.iterdir()) == [path]


def test_what_was_read_does_not_change_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    write(path, TENSORS, {})
    tensors, _ = read(path)
    with path.open("r+b") as file:
        file.seek(-24, 2)
        file.write(bytes(24))
    assert torch.equal(tensors["one"], TENSORS["one"])
    with pytest.raises(ValueError, match="does not match its checksum"):
        read(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    safetensors.torch.save_file(TENSORS, tmp_path / "foreign")
    (tmp_path / "text").write_text("some words that are no header")
    with pytest.raises(ValueError, match="not a file of lade"):
        read(tmp_path / "foreign")
    with pytest.raises(ValueError, match="not a safetensors file"):
        read(tmp_path / "text")
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "nowhere")


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    monkeypatch.setenv("LADE_CACHE", "~/own")
    assert cache_folder() == tmp_path / "own"
    monkeypatch.setenv("LADE_CACHE", "")
    assert cache_folder() == tmp_path / "shared" / "lade"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == tmp_path / ".cache" / "lade"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / ".cache" / "lade"
    assert not (tmp_path / ".cache").exists()


def test_a_user_without_a_home_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("LADE_CACHE", "~nobody-of-this-name/cache")
    with pytest.raises(OSError, match="LADE_CACHE can name the folder"):
        cache_folder()
