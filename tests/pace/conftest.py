"""Every test of step costs has a cache folder of its own."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("LADE_CACHE", str(tmp_path))
    return tmp_path
