"""The rows of a step in the form that the functions take, kept from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

from lade.base.compiled import Compiled, compiled_with_lists, viewed
from lade.memory.row import Row

List: Any = list  # machine code has one of its own


@compiled_with_lists
def listed(row: Row) -> Any:
    """A list of one row."""
    rows = List()
    rows.append(row)
    return rows


@compiled_with_lists
def append_row(rows: Any, row: Row) -> None:
    rows.append(row)


@compiled_with_lists
def set_row(rows: Any, place: int, row: Row) -> None:
    rows[place] = row


LISTED, APPEND_ROW, SET_ROW = Compiled(listed), Compiled(append_row), Compiled(set_row)


class Rows:
    """A list of rows."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._viewed: list[Row] | None = None
        self._typed: Any = None  # of `_rows` when it was made, then with every change

    def set(self, rows: Sequence[Row]) -> None:
        """The rows of the next calls."""
        number = len(self._rows)
        known = enumerate(zip(rows, self._rows, strict=False))
        changed = [place for place, (row, old) in known if row is not old and not all(map(is_, row, old))]
        if not changed and len(rows) == number:
            return
        self._rows, self._viewed = [*rows], None
        if len(rows) < number:
            self._typed = None
        if self._typed is not None:
            for place in changed:
                SET_ROW(self._typed, place, rows[place])
            for row in rows[number:]:
                APPEND_ROW(self._typed, row)

    def viewed(self) -> list[Row]:
        """For the functions as Python."""
        if self._viewed is None:
            self._viewed = [viewed(row) for row in self._rows]
        return self._viewed

    def typed(self) -> Any:
        """For machine code."""
        if self._typed is None:
            self._typed = LISTED(self._rows[0])
            for row in self._rows[1:]:
                APPEND_ROW(self._typed, row)
        return self._typed
