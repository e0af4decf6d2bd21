"""The table of recycled predictions of one pool (`lade.memory.predictions`)."""

from __future__ import annotations

import numpy as np

from lade.base.compiled import Compiled
from lade.config.settings import CAPACITY
from lade.memory import predictions
from lade.memory.context import CONTEXT, LENGTHS, SHORT
from lade.memory.predictions import FIELDS, IS_YOUNG, NUMBER, TOP, WIDTH, YOUNG
from lade.memory.regions import Regions, Table

FIRST = 1024  # contexts that there is room for at first

FORGET = Compiled(predictions.forget)


class _Arrays:
    """The arrays of a table. They grow by a copy, so that whatever interrupts growth leaves a whole table.

    Args:
        room: contexts.
    """

    def __init__(self, room: int) -> None:
        regions = Regions(FIELDS)
        self._table = Table(regions, (predictions.CONTEXTS, NUMBER, predictions.INDEX, predictions.SLOTS), WIDTH)
        self._table.reserve(room)
        self.ints, self.masses, self.room = regions.ints, np.zeros(room * TOP, np.float32), room

    def copy(self, room: int) -> _Arrays:
        """The same contexts, with room for more."""
        made, number, begin = _Arrays(room), int(self.ints[NUMBER]), int(self.ints[predictions.CONTEXTS])
        made.ints[predictions.BEGUN : FIELDS] = self.ints[predictions.BEGUN : FIELDS]
        made.fill(self.ints[begin : begin + number * WIDTH], self.masses[: number * TOP])
        return made

    def fill(self, rows: np.ndarray, masses: np.ndarray) -> None:
        """Begin with these contexts, and with their probabilities."""
        begin = self.ints[predictions.CONTEXTS]
        self.ints[begin : begin + rows.size] = rows
        self.masses[: masses.size] = masses
        self.ints[NUMBER] = rows.size // WIDTH
        self._table.reindex()


class PredictionTable:
    """Top-k predictions by context, in two generations per length of context: new predictions go into the young one.

    When the young one is full it becomes the old one, and older contexts are dropped unless they were learned again.

    Args:
        capacity: contexts kept per length, at least 1; one step may exceed it. The half that was learned last is always
            kept.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self._arrays = _Arrays(FIRST)
        self._most = FIRST  # contexts that there may be, as far as it was counted

    @property
    def ints(self) -> np.ndarray:
        """int32, the contexts and their tokens."""
        return self._arrays.ints

    @property
    def masses(self) -> np.ndarray:
        """float32, `TOP` probabilities per row."""
        return self._arrays.masses

    def __len__(self) -> int:
        return int(self.ints[NUMBER])

    def begin(self) -> int:
        """Count a request that begins. Returns its number."""
        self.ints[predictions.BEGUN] += 1
        return int(self.ints[predictions.BEGUN])

    def reserve(self, contexts: int) -> None:
        """Make room for so many more contexts."""
        self._most += contexts
        room = self._arrays.room
        if self._most > room:
            self._most = len(self) + contexts
            if self._most > room:
                self._arrays = self._arrays.copy(max(self._most, 2 * room))

    def rows(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """[n, WIDTH] contexts of this length, the oldest first, and their [n, TOP] probabilities."""
        begin = int(self.ints[predictions.CONTEXTS])
        rows = self.ints[begin : begin + len(self) * WIDTH].reshape(-1, WIDTH)
        own = np.flatnonzero(_lengths(rows) == length)
        own = own[np.argsort(rows[own, IS_YOUNG], kind="stable")]
        return rows[own], self.masses.reshape(-1, TOP)[own]

    def young(self, length: int) -> int:
        """How many of them are young."""
        return int(self.ints[YOUNG + length])

    def replace(self, parts: list[tuple[np.ndarray, np.ndarray]]) -> None:
        """Take what `rows` gives for each length, of whatever capacity; the oldest beyond the own one are left out."""
        kept = [(rows[-self.capacity :], masses[-self.capacity :]) for rows, masses in parts]
        rows, masses = (np.concatenate(each) for each in zip(*kept, strict=True))
        arrays, lengths = _Arrays(max(len(rows), FIRST)), _lengths(rows)
        arrays.ints[predictions.BEGUN] = self.ints[predictions.BEGUN]
        for length in LENGTHS:
            arrays.ints[YOUNG + length] = rows[lengths == length, IS_YOUNG].sum()
        arrays.fill(rows.ravel(), masses.ravel())
        self._arrays, self._most = arrays, arrays.room

    def resize(self, capacity: int) -> None:
        """Change the capacity; the oldest contexts beyond it are dropped at once."""
        self.capacity = capacity
        FORGET(self.ints, self.masses, capacity)
        self.replace([self.rows(length) for length in LENGTHS])


def _lengths(rows: np.ndarray) -> np.ndarray:
    """[n] tokens of each context of [n, WIDTH] rows."""
    lengths: np.ndarray = (rows[:, :CONTEXT] != SHORT).sum(1)
    return lengths
