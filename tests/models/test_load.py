"""`lade.models.load`: the models that ship, local folders, and what is refused before any file is read."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, T5Config

from lade.models import load
from lade.models.device import ABSENT, as_device
from lade.models.load import as_dtype, model_source
from lade.models.shipped import FOLDER, NAMES, STORIES, TARGET

SHIPPED = FOLDER / STORIES
STORY = "Once upon a time, there was a little girl named Lily. She loved to play outside"


@pytest.mark.compat
def test_shipped_model_tells_a_story() -> None:
    model, tokenizer = load(STORIES)
    assert not model.training
    assert model.num_parameters() == 260_032
    inputs = tokenizer("Once upon a time", return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=24, do_sample=False)
    assert tokenizer.decode(output[0], skip_special_tokens=True).startswith(STORY[:70])


def test_shipped_model_ends_with_its_bos_token() -> None:
    model, tokenizer = load(STORIES)
    assert model.generation_config.eos_token_id == tokenizer.bos_token_id == 1
    assert model.generation_config.pad_token_id == 1


def test_shipped_model_carries_licence_and_source() -> None:
    assert (SHIPPED / "LICENSE").read_text().startswith("MIT License")
    assert "MIT" in (SHIPPED / "SOURCE.txt").read_text()


def test_short_names_of_models_that_ship() -> None:
    assert [model_source(name) for name in NAMES] == [str(FOLDER / name) for name in NAMES]
    assert model_source(None) == str(FOLDER / TARGET)


def with_configuration(**changes: object) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        found = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(found | changes))

    return damage


DAMAGES: dict[str, Callable[[Path], object]] = {
    "weights cut": lambda folder: (folder / "model.safetensors").write_bytes(b"\x10\x27" + b"{" * 2000),
    "weights empty": lambda folder: (folder / "model.safetensors").write_bytes(b""),
    "configuration null": lambda folder: (folder / "config.json").write_text("null"),
    "configuration list": lambda folder: (folder / "config.json").write_text("[1]"),
    "tokenizer": lambda folder: (folder / "tokenizer.json").write_text("{,"),
    "tokenizer absent": lambda folder: [path.unlink() for path in folder.glob("tokenizer*")],
    "another kind": lambda folder: T5Config(decoder_start_token_id=0).save_pretrained(folder),
    "no heads": with_configuration(num_attention_heads=0),
    "layers in words": with_configuration(num_hidden_layers="five"),
    "dtype": with_configuration(dtype="float99"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_model_is_named(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(SHIPPED, tmp_path / "model")
    DAMAGES[name](folder)
    with pytest.raises((ValueError, OSError)) as wrong:
        load(folder)
    assert str(folder) in str(wrong.value)
    assert len(str(wrong.value).splitlines()) == 1
    assert len(str(wrong.value)) < 600


def test_a_folder_comes_before_a_shipped_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / STORIES).mkdir()
    (tmp_path / STORIES / "config.json").write_text("{}")
    assert model_source(STORIES) == STORIES


@pytest.mark.parametrize("name", ["lade-code-8m", "stories-260K", "Lade-Code-8M-draft", "lade-code-8M/"])
def test_a_shipped_name_misspelt_is_told_the_names_and_asks_no_hub(name: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"a model that ships \(lade-code-8M, lade-code-8M-draft, stories260K"):
        load(name)


def test_local_folder_dtype_and_attention() -> None:
    model, _ = load(SHIPPED, dtype=torch.bfloat16, device="cpu", attn_implementation="eager")
    assert model.dtype is torch.bfloat16
    assert model.config._attn_implementation == "eager"


def test_folder_may_be_text_with_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(SHIPPED.parent))
    assert model_source("~/stories260K") == str(SHIPPED)


@pytest.mark.parametrize("name", ["owner/model", "gpt2", "Qwen/Qwen2.5-0.5B"])
def test_hub_names_pass(name: str) -> None:
    assert model_source(name) == name


@pytest.mark.parametrize(
    "name", ["", "./nowhere", "/nowhere", "../x", "a/b/c", "~/nowhere", "~nobody-there/model", Path("owner/model")]
)
def test_missing_path_is_named(name: str | Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"path_or_name must be a folder, a hub name .*, got "):
        load(name)


def test_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("")
    with pytest.raises(FileNotFoundError, match="path_or_name must be a folder"):
        load(str(tmp_path / "weights"))


def test_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("argument", "value"), [("dtype", "int8"), ("dtype", torch.int64), ("device", "abacus"), ("device", "meta")]
)
def test_bad_dtype_and_device_are_refused_before_any_file_is_read(
    argument: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_reading(*_: object, **__: object) -> None:
        raise AssertionError("a file was read")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", no_reading)
    with pytest.raises(ValueError, match=rf"{argument} must be .*, got "):
        load(**{argument: value})


@pytest.mark.parametrize("name", ["float16", "torch.float16", torch.float16])
def test_dtype_by_name_or_itself(name: str | torch.dtype) -> None:
    assert as_dtype(name) is torch.float16


def test_device_by_name_or_itself() -> None:
    assert as_device("cpu") == as_device(torch.device("cpu")) == torch.device("cpu")


@pytest.mark.parametrize("name", ["fpga", "hpu", "mtia", "ve", "privateuseone"])
def test_absent_device_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(ValueError, match=r"device must be a device of this machine \(.*\), got ") as found:
        as_device(name)
    assert len(str(found.value)) < 120


def test_absent_backend_is_told_without_those_that_torch_has() -> None:
    with pytest.raises(ValueError, match=ABSENT):
        as_device("fpga")


def test_an_empty_name_is_not_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"path_or_name must be a folder, .*, got ''"):
        model_source("")
