"""Warm tables of other formats: ignored with one sentence, and only where there is no table of this format."""

import warnings
from pathlib import Path

import pytest

from lade.facts.fingerprint import configuration_key
from lade.files.cachefolder import CacheWarning
from lade.memory.warm import warming as warm
from lade.memory.warm.file import FORMAT, PREFIX
from lade.models import load
from lade.models.shipped import STORIES


def older(folder: Path, key: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"warm{int(FORMAT) - 1}-{key}-0123.safetensors"
    path.write_bytes(b"of another format")
    return path


def test_a_table_of_another_format_is_ignored_with_one_sentence(table_folder: Path) -> None:
    model, _ = load(STORIES)
    path = older(table_folder, configuration_key(model))
    expected = rf"lade ignores {path}: its format must be {FORMAT}; `lade warm` computes a new table"
    with pytest.warns(CacheWarning, match=expected) as told:
        found = [warm.cached(load(STORIES)[0]) for _ in range(3)]
    assert found == [None] * 3
    assert len(told) == 1
    assert path.is_file()


def test_tables_of_other_models_are_no_matter(table_folder: Path) -> None:
    older(table_folder, "0123456789abcdef")
    with warnings.catch_warnings(action="error"):
        assert warm.cached(load(STORIES)[0]) is None


@pytest.mark.usefixtures("short_texts")
def test_nothing_is_said_beside_a_table_of_this_format(table_folder: Path) -> None:
    model, _ = load(STORIES)
    warm.warm_up(model, top=2)
    assert any(table_folder.glob(f"{PREFIX}*"))
    older(table_folder, configuration_key(model))
    with warnings.catch_warnings(action="error"):
        assert warm.cached(load(STORIES)[0]) is not None
