"""Warm tables for checkpoints: the table of the transformers model with the same weights, and no other's."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from lade.files.cachefolder import cache_folder
from lade.memory.warm.warming import cached
from lade.models.load import model_source
from lade.vllm.table import named_table, table_of


@pytest.fixture
def source() -> str:
    return str(model_source("stories260K"))


@pytest.fixture
def filled(shipped_and_warm: PreTrainedModel, table_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder with the table of the shipped model."""
    made = next(tmp_path_factory.getbasetemp().parent.rglob("tables/warm*"))
    table_folder.mkdir()
    return Path(shutil.copy(made, table_folder))


def test_a_checkpoint_has_the_table_of_its_model(shipped_and_warm: PreTrainedModel, filled: Path, source: str) -> None:
    expected = cached(shipped_and_warm)
    assert expected is not None
    for dtype in (torch.float32, torch.bfloat16):
        found = table_of(source, None, dtype)
        assert found is not None
        assert found.digest == expected.digest


def test_other_weights_have_none(filled: Path, source: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(source, other)
    weights = load_file(other / "model.safetensors")
    name = next(iter(weights))
    save_file(weights | {name: weights[name] + 1}, other / "model.safetensors", {"format": "pt"})
    assert table_of(str(other), None, torch.float32) is None


def test_a_checkpoint_without_weights_is_told_of(
    filled: Path, source: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / "other"
    shutil.copytree(source, other, ignore=shutil.ignore_patterns("*.safetensors"))
    assert table_of(str(other), None, torch.float32) is None
    assert "could not read the checkpoint" in caplog.text


def test_without_tables_no_model_is_built(table_folder: Path) -> None:
    assert cache_folder() == table_folder
    assert table_of("/nowhere", None, torch.float32) is None


def test_a_named_table_is_read_whatever_its_model(shipped_and_warm: PreTrainedModel, filled: Path) -> None:
    expected = cached(shipped_and_warm)
    assert expected is not None
    size = len(expected.tokens)
    assert named_table(str(filled), size).digest == expected.digest
    with pytest.raises(ValueError, match=r"warm3-.*: its tensors have the wrong shapes or dtypes"):
        named_table(str(filled), size + 1)
