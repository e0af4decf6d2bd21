"""`lade bench-report`: makes the report of a bench again, or one leaderboard of several. Runs no model."""

from dataclasses import asdict
from pathlib import Path

import click

from lade.applications.bench.report import build
from lade.applications.bench.report.leaderboard import leaderboard
from lade.applications.bench.report.leaderboard_files import terminal_table, write
from lade.applications.exits import Command, failing, usage
from lade.applications.output import JSON, show
from lade.applications.outputs import make_folder


@click.command("bench-report", cls=Command)
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for the leaderboard of several runs.  [default: this folder]"
)
@JSON
def command(folders: tuple[Path, ...], out: Path | None, as_json: bool) -> None:
    """Make the summary, tables, plots and page of the bench in a folder again, from results.jsonl and run.json.

    Of several FOLDERS, or with --out, make one leaderboard instead: leaderboard.html, .md, .csv and .tex. Methods are
    ranked together where model, machine, prompts and settings are the same.

    Works for interrupted benches too.
    """
    if len(folders) == 1 and out is None:
        with failing(OSError), usage("FOLDERS", ValueError):
            report = build(folders[0])
        report.show(as_json)
    else:
        merge(folders, out or Path(), as_json)


def merge(folders: tuple[Path, ...], out: Path, as_json: bool) -> None:
    with failing(OSError), usage("FOLDERS", ValueError):
        found = leaderboard(folders)
    with usage():
        make_folder("--out", out)
    path = write(found, out)
    boards = [
        {"title": board.title, **dict(board.heading), "table": [asdict(entry) for entry in board.entries]}
        for board in found.boards
    ]
    show(
        *map(terminal_table, found.boards),
        f"leaderboard: {path}",
        found={"path": str(path), "boards": boards},
        as_json=as_json,
    )
