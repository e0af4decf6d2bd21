"""Where a command's findings go: to stdout, or with --json to stderr, so that stdout holds one JSON object alone.

Knows the terminal; knows no command and nothing of what is shown.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any, TextIO

import click
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

PIPED_WIDTH = 120  # at least, where there is no terminal to ask
UNBOUNDED = 10_000  # columns
JSON = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object, alone on stdout; all else goes to stderr."
)


def show(*parts: Table | str, found: Mapping[str, Any], as_json: bool) -> None:
    """Tables and lines, and what was found as JSON where it was asked for."""
    for part in parts:
        if isinstance(part, Table):
            _console(part, sys.stderr if as_json else sys.stdout).print(part)
        else:
            click.echo(part, err=as_json)
    if as_json:
        click.echo(json.dumps(found))


def _console(table: Table, stream: TextIO) -> Console:
    """As wide as the terminal; where there is none, as the table."""
    if stream.isatty():
        return Console(file=stream)
    width = Measurement.get(Console(width=UNBOUNDED), Console(width=UNBOUNDED).options, table).maximum
    return Console(file=stream, width=max(PIPED_WIDTH, width))
