"""The `lade` command: its table of commands and what it loads when."""

import click
import pytest
from click.testing import CliRunner

from lade.applications import cli
from lade.applications.options import model_options
from lade.base.version import VERSION


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_listed_command_exists(name: str) -> None:
    command = cli.main.get_command(click.Context(cli.main), name)
    assert isinstance(command, click.Command)
    assert CliRunner().invoke(cli.main, [name, "--help"]).exit_code == 0


def test_help_lists_the_commands_without_loading_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "import_module", lambda name: pytest.fail(f"{name} was loaded"))
    result = CliRunner().invoke(cli.main, ["--help"])
    assert result.exit_code == 0
    for name, (_, line) in cli.COMMANDS.items():
        assert name in result.output
        assert line in result.output


LOADING = ("bench", "likelihood", "serve", "skip-search", "tune", "warm")


@pytest.mark.parametrize("name", [*LOADING, "widen"])
def test_commands_that_load_a_model_take_the_same_options(name: str) -> None:
    """Only `widen` takes no --quant: it changes the weights themselves."""
    command = cli.main.get_command(click.Context(cli.main), name)
    assert command is not None
    wanted = ("--dtype", "--device", "--threads", *(["--quant"] if name in LOADING else []))
    shared = helps(click.command("all")(model_options(lambda: None)))
    assert {option: helps(command).get(option) for option in wanted} == {option: shared[option] for option in wanted}


def helps(command: click.Command) -> dict[str, tuple[str, str] | None]:
    return {option.opts[0]: option.get_help_record(click.Context(command)) for option in command.params}


def test_version() -> None:
    assert CliRunner().invoke(cli.main, ["--version"]).output == f"lade, version {VERSION}\n"


def test_unknown_command_is_named() -> None:
    result = CliRunner().invoke(cli.main, ["fly"])
    assert result.exit_code == 2
    assert "No such command 'fly'" in result.output
