"""`lade bench-report`: makes the report of a bench again from its files. Knows the terminal; runs no model."""

from pathlib import Path

import click

from lade.applications.bench.report import build
from lade.applications.exits import Command, failing, usage
from lade.applications.output import JSON


@click.command("bench-report", cls=Command)
@click.argument("folder", type=click.Path(path_type=Path))
@JSON
def command(folder: Path, as_json: bool) -> None:
    """Make the summary, tables, plots and page of the bench in FOLDER again, from results.jsonl and run.json.

    Works for interrupted benches too.
    """
    with failing(OSError), usage("FOLDER", ValueError):
        report = build(folder)
    report.show(as_json)
