"""The rows of a step: the arrays that functions read, as Python and as machine code."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade.base.compiled import Compiled, Linker, compiled, trial
from lade.memory.row import ELEMENTS, Row
from lade.memory.rows import Rows, row_at


@compiled
def copy(array: Any, out: Any, at: int) -> int:
    for index in range(len(array)):
        out[at + index] = array[index]
    out[at + len(array)] = len(array)
    return at + len(array) + 1


@compiled
def copy_all(rows: Sequence[Row], number: int, out: Any) -> None:
    """Every element of so many rows' arrays, and after each array its length."""
    at = 0
    for place in range(number):
        row = row_at(rows, place)
        at = copy(row.ints, out, at)
        at = copy(row.floats, out, at)
        at = copy(row.pool, out, at)
        at = copy(row.pool_masses, out, at)
        at = copy(row.weights, out, at)
        at = copy(row.warm, out, at)
        at = copy(row.warm_masses, out, at)
        at = copy(row.corpus, out, at)
        at = copy(row.noise, out, at)


COPY = Compiled(copy_all)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("numba")
    made = Linker(Path(tmp_path_factory.mktemp("machine"))).entry(copy_all)
    with trial({COPY: made}):
        COPY(rows_of([made_row(0, [1] * len(ELEMENTS))]), 0, np.zeros(1))
    return made


def made_row(first: int, sizes: Sequence[int]) -> Row:
    arrays = [np.arange(first, first + size).astype(kind) for size, kind in zip(sizes, ELEMENTS, strict=True)]
    return Row(*arrays)


def rows_of(rows: Sequence[Row]) -> Rows:
    made = Rows()
    made.set(rows)
    return made


def copied(rows: Rows, given_rows: Sequence[Row]) -> list[float]:
    out = np.zeros(sum(array.size + 1 for row in given_rows for array in row))
    COPY(rows, len(given_rows), out)
    return out.tolist()


def elements(rows: Sequence[Row]) -> list[float]:
    return [value for row in rows for array in row for value in (*array.tolist(), array.size)]


ROW = st.builds(
    made_row, st.integers(0, 100), st.lists(st.integers(0, 4), min_size=len(ELEMENTS), max_size=len(ELEMENTS))
)
ROWS = st.lists(ROW, max_size=4)


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_rows_that_change_join_and_leave(machine: Any, steps: list[list[Row]]) -> None:
    rows = Rows()
    for step in steps:
        rows.set(step)
        assert copied(rows, step) == elements(step)
        with trial({COPY: machine}):
            assert copied(rows, step) == elements(step)


def test_an_array_that_is_replaced_is_the_one_that_is_read(machine: Any) -> None:
    row = made_row(0, [2] * len(ELEMENTS))
    rows = rows_of([row])
    for name in Row._fields:
        row = row._replace(**{name: getattr(row, name) + 1})
        rows.set([row])
        with trial({COPY: machine}):
            assert copied(rows, [row]) == elements([row])
