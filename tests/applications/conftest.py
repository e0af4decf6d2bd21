"""What tests of the commands share. Imports no model library before the tests' surroundings are set up."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from forks import run_in_a_child

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random model that reads images."""
    from seeing import save_llava

    return save_llava(tmp_path_factory.mktemp("models") / "llava")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of words: pictures take a second to draw."""
    from lade.applications.bench.report import files

    monkeypatch.setattr(files, "drawn", lambda findings: {files.PICTURES[0]: b"drawn"})


@pytest.fixture
def in_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is measured in children of this process, not in new interpreters, which take seconds to start."""
    from lade.applications.bench import memory

    def run(command: list[str], **_: Any) -> CompletedProcess[str]:
        def measured() -> None:
            sys.argv = command[2:]
            memory.main()

        assert command[:3] == [sys.executable, "-m", memory.__name__]
        return run_in_a_child(measured)

    monkeypatch.setattr(memory, "subprocess", SimpleNamespace(run=run))
