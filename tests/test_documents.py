"""What README and docs show: code that runs, commands and links that exist, recorded figures, plain words."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import figures
import pytest
from documents import (
    BASH,
    CHINESE,
    GENERATED,
    PAGES,
    README,
    ROOT,
    Block,
    anchors,
    blocks,
    calls,
    in_tables,
    links,
    numbers,
    outside_tables,
    prose,
    sentences,
    tables,
    words,
)
from forks import needs_fork, run_in_a_child

from lade.applications import cli
from lade.applications.chat.commands import COMMANDS
from lade.config.settings import FIELDS

WRITTEN = [page for page in PAGES if GENERATED not in page.parents]
OTHERS = {
    "claude",
    "codex",
    "curl",
    "echo",
    "git",
    "pip",
    "pytest",
    "python3",
    "ruff",
    "torchrun",
    "vllm",
}  # programs of others
needs_bash = pytest.mark.skipif(not Path(BASH).is_file(), reason="there is no bash")
PYTHON = [
    block
    for page in sorted((ROOT / "docs").glob("*.md"))
    for block in blocks(page, "python")
    if "lade.Engine(" not in block.code
]
# Turns of phrase that newcomers did not understand.
UNCLEAR = ("free source", "believed", "best first by", "earn their place", "who begins", "surprise", "so many steps")


def name(block: Block) -> str:
    return block.name


def where(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def test_the_readme_is_short() -> None:
    text = prose(README)
    assert len(words(outside_tables(text))) <= 900
    assert len(words(in_tables(text))) <= 150


@pytest.mark.parametrize("page", [README, ROOT / "docs" / "README.md"], ids=where)
def test_sentences_are_short(page: Path) -> None:
    long = [each for each in sentences(outside_tables(prose(page))) if len(words(each)) > 25]
    assert not long


@pytest.mark.parametrize("page", WRITTEN, ids=where)
def test_words_are_clear(page: Path) -> None:
    text = " ".join(prose(page).split())
    assert not [phrase for phrase in UNCLEAR if phrase in text]


@pytest.mark.parametrize("page", PAGES, ids=where)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if "://" not in link:
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def test_every_page_is_in_the_table_of_contents() -> None:
    contents = ROOT / "docs" / "README.md"
    listed = {(contents.parent / link.partition("#")[0]).resolve() for link in links(contents)}
    assert {page for page in WRITTEN if ROOT / "docs" in page.parents} - {contents} <= listed


def test_figures_are_those_of_the_recorded_run() -> None:
    """`python benchmarks/figures.py` writes the pictures and prints the rows."""
    found, overall = figures.read_run(GENERATED)
    for file, picture in figures.pictures(found).items():
        assert (ROOT / "docs" / file).read_text(encoding="utf-8") == picture
    for page, tasks in ((README, figures.IN_README), (ROOT / "docs" / "figures.md", figures.TASKS)):
        text = page.read_text(encoding="utf-8")
        assert "\n".join(figures.table(found, overall, tasks)) in text
        assert all(told in text for told in made_on(json.loads((GENERATED / "run.json").read_text())["machine"]))


def made_on(machine: dict[str, Any]) -> list[str]:
    """Date and versions, as a page writes them."""
    versions = machine["versions"]
    return [
        machine["date"][:10],
        f"torch {versions['torch'].partition('+')[0]}",
        f"transformers {versions['transformers']}",
    ]


@needs_bash
@pytest.mark.parametrize("page", [page for page in WRITTEN if blocks(page, "sh", "bash")], ids=where)
def test_commands_of_shell_blocks_exist(page: Path, tmp_path: Path) -> None:
    for program, *arguments in calls(page, tmp_path):
        if program == "lade":
            assert_taken(cli.main.get_command(click.Context(cli.main), arguments[0]), arguments[1:])
        elif program == "python":
            assert_started(arguments)
        else:
            assert program in OTHERS


def assert_taken(command: click.Command | None, arguments: list[str]) -> None:
    """Every option is one of the command's, and no argument is too many."""
    assert command is not None
    parser = command.make_parser(click.Context(command))
    parser.ignore_unknown_options = False
    assert parser.parse_args(list(arguments))[1] == []


def assert_started(arguments: list[str]) -> None:
    """A module or a script of the repository, and its options."""
    if arguments[0] == "-m":
        spec, rest = find_spec(arguments[1]), arguments[2:]
        assert spec is not None
        source = Path(str(spec.origin))
    else:
        source, rest = ROOT / arguments[0], arguments[1:]
    known = {
        name for names in re.findall('"(--[^"]*)"', source.read_text(encoding="utf-8")) for name in names.split("/")
    }
    assert {option.partition("=")[0] for option in rest if option.startswith("--")} <= known


@needs_fork
@pytest.mark.parametrize("block", PYTHON, ids=name)
def test_python_blocks_run(block: Block, tmp_path: Path) -> None:
    """On the smallest model, in their own folder. The README's, the engine's and the server's have their own tests."""
    code = re.sub(r'"lade-code-8M(-draft)?"', '"stories260K"', block.code)
    done = run_in_a_child(lambda: (os.chdir(tmp_path), exec(code, {})))
    assert done.returncode == 0, done.stderr
    assert ("print(" in code) == bool(done.stdout.strip())


def test_python_blocks_are_complete() -> None:
    """What needs another machine or another package is compiled at least."""
    for page in WRITTEN:
        for block in blocks(page, "python"):
            assert "import" in block.code, block.name
            compile(block.code, block.name, "exec")


def test_the_chinese_readme_has_the_same_code_figures_and_links() -> None:
    assert [block.code for block in blocks(CHINESE)] == [block.code for block in blocks(README)]
    assert numbers(prose(CHINESE)) == numbers(prose(README))
    there = [link for link in links(CHINESE) if link != README.name]
    assert sorted(there) == sorted(link for link in links(README) if link != CHINESE.name)
    assert len(re.findall(r"^## ", prose(CHINESE), re.MULTILINE)) == len(
        re.findall(r"^## ", prose(README), re.MULTILINE)
    )


def test_the_chinese_readme_has_the_same_tables() -> None:
    """The same figures in every row, in as many cells; words may be translated."""
    theirs, ours = ([figures_of(table) for table in tables(prose(page))] for page in (CHINESE, README))
    assert theirs == ours


def figures_of(table: list[list[str]]) -> list[tuple[int, list[str]]]:
    """Per row: its cells, and the figures in them."""
    return [(len(row), sorted(numbers("|".join(row)))) for row in table]


SMALL = {
    "MODEL": "stories260K",
    "DRAFT": "stories260K",
    "smollm2-135m": "stories260K",
    "FILE": "prompts.jsonl",
    "mine.jsonl": "prompts.jsonl",
    "skip.json": "1-2/3",
    "mt_bench,human_eval,gsm8k": "stories",
    "256,1024": "16,32",
}
SHORT = {  # further options of a command
    "bench": ["--n", "1", "--max-new-tokens", "4", "--threads", "1"],
    "tune": ["--candidates", "auto:budget=8", "--repeats", "1", "--max-new-tokens", "4", "--threads", "1"],
}


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.usefixtures("table_folder")
@pytest.mark.parametrize("page", ["docs/bench.md", "docs/warm-tables.md"])
def test_commands_run(page: str, tmp_path: Path) -> None:
    """On the smallest model and few prompts. Those that fetch a model or listen have tests of their own."""
    openings = [f"Once upon a time, {name}" for name in ("Tim", "Lily", "Ben", "Sue", "Tom", "Mia")]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": each}) + "\n" for each in openings))
    for number, (_, name, *arguments) in enumerate(calls(ROOT / page, tmp_path)):
        small = [SMALL.get(each, each).replace("DIR", f"out{number}") for each in arguments]
        command = [sys.executable, "-m", "lade", name, *small, *SHORT.get(name, [])]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_the_page_of_use_lists_all_settings() -> None:
    page = in_tables(prose(ROOT / "docs" / "use.md"))
    assert not [each for public, field in FIELDS.items() for each in (public, field) if f"`{each}`" not in page]


def test_the_page_of_the_chat_lists_its_commands() -> None:
    told = re.findall(
        r"^\| `(/\w+)[^|]*?`(?:, `(/\w+)[^|]*?`)? \|", (ROOT / "docs" / "chat.md").read_text(), re.MULTILINE
    )
    assert {name for row in told for name in row if name} | {"/plain"} == set(COMMANDS)
