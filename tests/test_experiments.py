"""The commands of docs/experiments.md: every option exists, and the prompts are there."""

import re
import shlex
from pathlib import Path

import click
import pytest

from lade.applications import cli
from lade.applications.bench.contenders import contenders
from lade.applications.bench.methods import MethodOptions
from lade.applications.bench.prompts import read_prompts

DOCS = Path(__file__).parents[1] / "docs"
TEXT = (DOCS / "experiments.md").read_text(encoding="utf-8")
COMMANDS = [
    line for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines() if line.strip()
]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_has_known_options_and_methods(line: str) -> None:
    program, name, *arguments = shlex.split(line)
    assert program == "lade"
    command = cli.main.get_command(click.Context(cli.main), name)
    assert command is not None
    given, _, _ = command.make_parser(click.Context(command)).parse_args(arguments)
    if "specs" in given:
        contenders(given["specs"], MethodOptions(draft=given.get("draft"), skip="1-2/3"))
    if "prompts" in given:
        assert DOCS.parent / given["prompts"] == DOCS / "experiments" / "prompts.jsonl"


def test_there_are_enough_different_prompts() -> None:
    prompts = read_prompts(DOCS / "experiments" / "prompts.jsonl")
    assert len({prompt.text for prompt in prompts}) == 24
