"""What a benchmark prints: a line per measurement as soon as it is there, or one JSON object at its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click


class Report:
    """Prints the machine at once, where lines are printed.

    Args:
        machine: as `lade.applications.bench.machine.describe` gives it.
        as_json: print the object, no line.
    """

    def __init__(self, machine: Mapping[str, Any], as_json: bool) -> None:
        self._machine, self._as_json = machine, as_json
        self.line(json.dumps(machine))

    def line(self, text: str) -> None:
        if not self._as_json:
            click.echo(text)

    def end(self, **found: Any) -> None:
        """Print the machine and what was given and found."""
        if self._as_json:
            click.echo(json.dumps({"machine": self._machine, **found}, indent=2))
