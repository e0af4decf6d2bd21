"""`lade bench-report`: makes the report of a bench anew from its files. Knows the terminal; runs no model."""

from pathlib import Path

import click

from lade.applications.bench.report import build
from lade.applications.exits import Command, failing, usage
from lade.applications.output import JSON


@click.command("bench-report", cls=Command)
@click.argument("folder", type=click.Path(path_type=Path))
@JSON
def command(folder: Path, as_json: bool) -> None:
    """Make summary, tables, pictures and page of the bench in FOLDER anew, from its results.jsonl and run.json.

    A bench that was interrupted has a report too, of what it recorded.
    """
    with failing(OSError), usage("FOLDER", ValueError):
        report = build(folder)
    report.show(as_json)
