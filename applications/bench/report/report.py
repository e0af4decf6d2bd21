"""What a bench found, ready to be shown and kept. Knows neither what was measured nor how."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from lade.applications.output import show
from lade.files.atomic import put_in_place


@dataclass(frozen=True)
class Report:
    """A table to read, and the figures behind it."""

    head: dict[str, Any]  # model, machine, options, counts
    table: Table
    notes: list[str]
    rows: list[dict[str, Any]]
    brief: list[dict[str, Any]]  # the rows as the terminal's JSON has them
    path: Path  # where there is more to read

    def show(self, as_json: bool) -> None:
        """The table, the notes and where the report lies; as JSON where that was asked for."""
        found = self.head | {"notes": self.notes, "table": self.brief}
        show(self.table, *self.notes, f"report: {self.path}", found=found, as_json=as_json)

    def write(self, path: Path) -> None:
        summary = self.head | {"notes": self.notes, "table": self.rows}
        put_in_place(path, (json.dumps(summary, indent=1) + "\n").encode())
