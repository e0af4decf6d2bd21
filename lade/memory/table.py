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


class PredictionTable:
    """Top-k predictions by context, in two generations per length of context: new predictions go into the young one.

    When the young one is full it becomes the old one, and older contexts are dropped unless they were learned again.

    Args:
        capacity: contexts kept per length, at least 1; one step may exceed it. The half that was learned last is always
            kept.

    Attributes:
        masses: float32, `TOP` probabilities per row.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self._clear(FIRST)

    def _clear(self, room: int) -> None:
        self._regions = Regions(FIELDS)
        fields = predictions.CONTEXTS, NUMBER, predictions.INDEX, predictions.SLOTS
        self._table = Table(self._regions, fields, WIDTH)
        self.masses = np.zeros(0, np.float32)
        self._most = room  # contexts that there may be, as far as it was counted
        self._room_for(room)

    @property
    def ints(self) -> np.ndarray:
        """int32, the contexts and their tokens."""
        return self._regions.ints

    def __len__(self) -> int:
        return int(self.ints[NUMBER])

    def begin(self) -> int:
        """Count a request that begins. Returns its number."""
        self.ints[predictions.BEGUN] += 1
        return int(self.ints[predictions.BEGUN])

    def reserve(self, contexts: int) -> None:
        """Make room for so many more contexts."""
        self._most += contexts
        if self._most > self._table.room:
            self._most = len(self) + contexts
            self._room_for(self._most)

    def _room_for(self, contexts: int) -> None:
        if self._table.reserve(contexts):
            masses = np.zeros(self._table.room * TOP, np.float32)
            masses[: len(self) * TOP] = self.masses[: len(self) * TOP]
            self.masses = masses

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
        begun = self.ints[predictions.BEGUN]
        self._clear(max(len(rows), FIRST))
        ints = self.ints
        ints[predictions.BEGUN] = begun
        begin = int(ints[predictions.CONTEXTS])
        ints[begin : begin + rows.size] = rows.ravel()
        self.masses[: masses.size] = masses.ravel()
        ints[NUMBER] = len(rows)
        lengths = _lengths(rows)
        for length in LENGTHS:
            ints[YOUNG + length] = rows[lengths == length, IS_YOUNG].sum()
        self._table.reindex()

    def resize(self, capacity: int) -> None:
        """Change the capacity; the oldest contexts beyond it are dropped at once."""
        self.capacity = capacity
        FORGET(self.ints, self.masses, capacity)
        self.replace([self.rows(length) for length in LENGTHS])


def _lengths(rows: np.ndarray) -> np.ndarray:
    """[n] tokens of each context of [n, WIDTH] rows."""
    lengths: np.ndarray = (rows[:, :CONTEXT] != SHORT).sum(1)
    return lengths
