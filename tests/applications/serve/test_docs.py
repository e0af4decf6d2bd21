"""The unit and the image that the documents show: their commands are those of `lade serve`."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from lade.applications.cli import main
from lade.applications.serve import command as module

DOCS = Path(__file__).parents[3] / "docs" / "serve"


def commands() -> list[list[str]]:
    unit = re.search(r"^ExecStart=\S+/lade (.*)$", (DOCS / "lade.service").read_text(), re.MULTILINE)
    image = re.search(r"^ENTRYPOINT \[(.*)\]$", (DOCS / "Dockerfile").read_text(), re.MULTILINE)
    assert unit is not None
    assert image is not None
    return [shlex.split(unit[1]), [part.strip().strip('"') for part in image[1].split(",")][1:]]


@pytest.mark.parametrize("arguments", commands(), ids=["systemd", "docker"])
def test_commands_are_taken(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").write_text("a-key-0123456789")
    served: list[object] = []
    monkeypatch.setattr(module, "serve", lambda *given: served.extend(given))
    monkeypatch.setattr(module, "check_address", lambda host, port: None)
    monkeypatch.setattr(sys.modules["lade.models.load"], "is_pulled", lambda name: True)
    own = [str(tmp_path / "keys") if each.endswith("/keys") else each for each in arguments]
    done = CliRunner().invoke(main, own)
    assert done.exit_code == 0, done.output
    assert served


def test_paths_of_the_page_are_there() -> None:
    from lade.applications.serve.app import create_app

    told = set(re.findall(r"`(?:GET|POST) (/[\w/.]*)`", (DOCS / "README.md").read_text()))
    folder = Path(create_app.__code__.co_filename).parent
    source = "".join(path.read_text() for path in folder.glob("*.py"))
    assert told
    assert all(f'"{path}"' in source or path == "/openapi.json" for path in told)
