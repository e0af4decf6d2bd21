"""Backoff in a warm table: the prediction for the longest known suffix of a context. Knows no tree."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from lade.memory.recycle import CONTEXT, NOTHING, TOP, Context
from lade.memory.warm.table import WarmTable

CACHED = 1 << 15  # contexts whose entry is kept
TABLES = 8  # pairs of table and sharpness whose `Backoff` is kept


def backoff(table: WarmTable, sharpness: float) -> Backoff:
    """The `Backoff` of a table, one for all calls whose sharpness is equal when rounded to a tenth."""
    return _prepared(table, max(round(sharpness, 1), 0.1))


@lru_cache(maxsize=TABLES)
def _prepared(table: WarmTable, sharpness: float) -> Backoff:
    return Backoff(table, sharpness)


class Backoff:
    """Predictions of a warm table by context.

    Args:
        sharpness: inverse temperature at which tokens are chosen; above 1 for greedy decoding.
    """

    def __init__(self, table: WarmTable, sharpness: float) -> None:
        contexts = table.contexts
        self._rows = _by_ending(contexts.endings.numpy())
        self._after, self._alone = contexts.tokens[:, :TOP].numpy(), table.tokens[:, :TOP].numpy()
        self._after_likely = sharpened(contexts.probabilities[:, :TOP].numpy(), sharpness)
        self._alone_likely = sharpened(table.probabilities[:, :TOP].numpy(), sharpness)
        self.entry = lru_cache(CACHED)(self._entry)

    def _entry(self, context: Context) -> tuple[int, list[int], list[float]]:
        """The length of the longest known suffix, likely next tokens, their probabilities; do not change the lists."""
        for length in range(CONTEXT, 0, -1):
            row = self._rows.get(context[CONTEXT - length :])
            if row is not None:
                return length, self._after[row].tolist(), self._after_likely[row].tolist()
        return self._alone_entry(context[-1])

    def _alone_entry(self, token: int) -> tuple[int, list[int], list[float]]:
        """The same for a token alone; nothing where the table has none or has not computed it."""
        if not 0 <= token < len(self._alone) or not self._alone_likely[token, 0]:
            return 0, [], []
        return 0, self._alone[token].tolist(), self._alone_likely[token].tolist()


def _by_ending(endings: np.ndarray) -> dict[tuple[int, ...], int]:
    """Suffix, without padding -> its row."""
    lengths = (endings != NOTHING).sum(axis=1)
    rows: dict[tuple[int, ...], int] = {}
    for length in range(1, CONTEXT + 1):
        own = np.flatnonzero(lengths == length)
        columns = endings[own, CONTEXT - length :].T.tolist()
        rows.update(zip(zip(*columns, strict=True), own.tolist(), strict=True))
    return rows


def sharpened(probabilities: np.ndarray, sharpness: float) -> np.ndarray:
    """[n, k] probabilities at this inverse temperature; the sum of each row does not change."""
    largest = probabilities.max(axis=1, keepdims=True, initial=1e-30)
    powers = (probabilities / largest) ** sharpness
    scale: np.ndarray = probabilities.sum(axis=1, keepdims=True) / np.maximum(powers.sum(axis=1, keepdims=True), 1e-30)
    return powers * scale
