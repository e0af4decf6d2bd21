"""`lade.models.processor`: the processor of a model that reads images, and none for others."""

from pathlib import Path

import pytest
import transformers
from seeing import picture, save_llava

from lade.models.processor import load_processor
from lade.models.shipped import NAMES


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llava(tmp_path_factory.mktemp("models") / "llava")


def test_it_makes_inputs_of_text_and_images(llava: Path) -> None:
    processor = load_processor(llava)
    assert processor is not None
    found = processor(text=["<image>"], images=[picture()], return_tensors="pt")
    assert found["input_ids"].shape == (1, 4)
    assert found["pixel_values"].shape == (1, 3, 16, 16)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_text_alone_has_none(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a file of one, nothing is loaded, not even another tokenizer."""

    def never(source: str, **_: object) -> None:
        raise AssertionError("there is no processor")

    monkeypatch.setattr(transformers.AutoProcessor, "from_pretrained", never)
    assert load_processor(name) is None


def test_a_processor_of_sound_alone_is_none(llava: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = load_processor(llava)
    monkeypatch.setattr(processor, "image_processor", None)
    monkeypatch.setattr(transformers.AutoProcessor, "from_pretrained", lambda name, **_: processor)
    assert load_processor(llava) is None


def test_downloads_lie_where_those_of_the_model_do(
    llava: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[object] = []

    def noted(*_: object, cache_dir: object) -> bool:
        found.append(cache_dir)
        return len(found) == 1

    monkeypatch.setattr(transformers.utils, "has_file", noted)
    monkeypatch.setattr(transformers.AutoProcessor, "from_pretrained", noted)
    load_processor(llava, tmp_path)
    assert found == [tmp_path, tmp_path]


@pytest.mark.parametrize("text", ["{,", "[1]", "null"])
def test_a_damaged_file_is_named(llava: Path, text: str, tmp_path: Path) -> None:
    for path in llava.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "processor_config.json").unlink()
    (tmp_path / "processor_config.json").write_text(text)
    with pytest.raises((ValueError, OSError)) as wrong:
        load_processor(tmp_path)
    assert str(tmp_path) in str(wrong.value)
    assert len(str(wrong.value).splitlines()) == 1


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        load_processor(tmp_path)
