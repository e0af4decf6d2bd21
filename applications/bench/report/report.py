"""A report, ready to print and to write. Knows no measurement."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from lade.applications.output import show
from lade.files.atomic import put_in_place


@dataclass(frozen=True)
class BenchReport:
    """A table for the terminal, and its figures."""

    head: dict[str, Any]  # model, machine, options, counts
    table: Table
    notes: list[str]
    rows: list[dict[str, Any]]
    brief: list[dict[str, Any]]  # the rows for the JSON on stdout
    path: Path  # of the full report

    def show(self, as_json: bool) -> None:
        """Print the table, the notes and the report's path; with `as_json` also JSON."""
        found = self.head | {"notes": self.notes, "table": self.brief}
        show(self.table, *self.notes, f"report: {self.path}", found=found, as_json=as_json)

    def write(self, path: Path) -> None:
        summary = self.head | {"notes": self.notes, "table": self.rows}
        put_in_place(path, (json.dumps(summary, indent=1) + "\n").encode())
