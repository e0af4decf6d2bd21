"""The rows of a step in the form that the functions take, kept from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

import numpy as np

from lade.base.compiled import compiled_as, viewed
from lade.memory.row import ELEMENTS, Row

WIDTH = 2 * len(Row._fields)  # of a row for machine code: the address of each array, and its number of elements


def _row_at_addresses() -> Any:
    from lade.base.addresses import tuple_at

    return tuple_at(Row, ELEMENTS)


@compiled_as(_row_at_addresses)
def row_at(rows: Any, place: int) -> Row:
    """One of the rows of a step, of the arrays that `Rows` passes."""
    return rows[place]


class Rows:
    """A list of rows: for the functions as Python a list of views, for machine code the addresses of the arrays."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._viewed: list[Row] | None = None
        self._typed = np.zeros(0, np.int64)

    def set(self, rows: Sequence[Row]) -> None:
        """The rows of the next calls."""
        number = len(self._rows)
        if len(self._typed) < len(rows) * WIDTH:
            self._typed = np.resize(self._typed, len(rows) * WIDTH)
        known = enumerate(zip(rows, self._rows, strict=False))
        changed = [place for place, (row, old) in known if row is not old and not all(map(is_, row, old))]
        if not changed and len(rows) == number:
            return
        self._rows, self._viewed = [], None  # if this is interrupted, the next call writes all
        for place in (*changed, *range(number, len(rows))):
            self._typed[place * WIDTH : (place + 1) * WIDTH] = _addresses(rows[place])
        self._rows = [*rows]

    def viewed(self) -> list[Row]:
        """For the functions as Python."""
        if self._viewed is None:
            self._viewed = [viewed(row) for row in self._rows]
        return self._viewed

    def typed(self) -> np.ndarray:
        """For machine code."""
        return self._typed


def _addresses(row: Row) -> list[int]:
    return [value for array in row for value in (array.ctypes.data, array.size)]
