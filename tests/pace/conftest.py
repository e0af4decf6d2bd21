"""What costs of steps are tested under: a cache folder of the test's own."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("LADE_CACHE", str(tmp_path))
    return tmp_path
