"""Where a command's findings go: to stdout, or with --json to stderr, so that stdout holds one JSON object alone.

Knows the terminal; knows no command and nothing of what is shown.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console
from rich.table import Table

PIPED_WIDTH = 120  # where there is no terminal to ask
JSON = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object, alone on stdout; all else goes to stderr."
)


def show(*parts: Table | str, found: Mapping[str, Any], as_json: bool, width: int = PIPED_WIDTH) -> None:
    """Tables and lines, and what was found as JSON where it was asked for."""
    stream = sys.stderr if as_json else sys.stdout
    console = Console(file=stream, width=None if stream.isatty() else width)
    for part in parts:
        if isinstance(part, Table):
            console.print(part)
        else:
            click.echo(part, err=as_json)
    if as_json:
        click.echo(json.dumps(found))
