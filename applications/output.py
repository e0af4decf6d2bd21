"""Output of commands: tables and lines on stdout; with --json on stderr, and one JSON object on stdout.

Knows the terminal; knows no command.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any, TextIO

import click
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

PIPED_WIDTH = 120  # least columns without a terminal
UNBOUNDED = 10_000  # columns
JSON = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on stdout, everything else on stderr."
)


def show(*parts: Table | str, found: Mapping[str, Any], as_json: bool) -> None:
    """Print tables and lines; with `as_json` also `found`, as JSON."""
    for part in parts:
        if isinstance(part, Table):
            _console(part, sys.stderr if as_json else sys.stdout).print(part)
        else:
            click.echo(part, err=as_json)
    if as_json:
        click.echo(json.dumps(found))


def _console(table: Table, stream: TextIO) -> Console:
    """As wide as the terminal, or as the table without one."""
    if stream.isatty():
        return Console(file=stream)
    width = Measurement.get(Console(width=UNBOUNDED), Console(width=UNBOUNDED).options, table).maximum
    return Console(file=stream, width=max(PIPED_WIDTH, width))
