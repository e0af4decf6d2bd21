"""A warm table in arrays: the prediction for the longest known suffix of a context."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from lade.base.compiled import compiled
from lade.memory.context import CONTEXT, SHORT, shortened
from lade.memory.hashing import FACTOR, MASK, SPREAD, Array, hashed
from lade.memory.predictions import TOP
from lade.memory.warmtable import WarmTable

TABLES = 8  # pairs of table and sharpness whose `Backoff` is kept
# Fields of the header: buckets of endings by their hash (a power of two), endings, predictions (one after each ending,
# then one after each vocabulary entry alone), tokens per prediction; where the first ending of each bucket, the
# endings, and the tokens stand.
BUCKETS, ENDINGS, NUMBER, COLUMNS, FIRSTS, ENDING, TOKENS = range(7)
HEADER = 7
TINY = 1e-30  # the least sum of probabilities that is divided by


class Backoff(NamedTuple):
    """Predictions of a warm table.

    Attributes:
        ints: int32, the header and what it says; endings have `SHORT` before fewer than `CONTEXT` tokens.
        masses: float32, per prediction the probabilities of its tokens, descending, at the inverse temperature; 0 where
            nothing is known.
    """

    ints: Array
    masses: Array


def backoff(table: WarmTable, sharpness: float) -> Backoff:
    """The predictions of a table at this inverse temperature, rounded to a tenth; one object for all calls."""
    return _prepared(table, max(round(sharpness, 1), 0.1))


NO_TABLE = Backoff(np.array([1, 0, 0, 0, HEADER, HEADER + 2, HEADER + 2, 0, 0], np.int32), np.zeros(0, np.float32))


@lru_cache(maxsize=TABLES)
def _prepared(table: WarmTable, sharpness: float) -> Backoff:
    endings = table.contexts.endings.numpy()
    endings = np.where(endings < 0, SHORT, endings).astype(np.int32)
    buckets = 1
    while buckets < len(endings):
        buckets *= 2
    own = hashes(endings) & (buckets - 1)
    order = np.argsort(own, kind="stable")
    firsts = np.searchsorted(own[order], np.arange(buckets + 1)).astype(np.int32)
    columns = min(TOP, table.contexts.tokens.shape[1])
    tokens = [table.contexts.tokens.numpy()[order, :columns], table.tokens.numpy()[:, :columns]]
    masses = [table.contexts.probabilities.numpy()[order, :columns], table.probabilities.numpy()[:, :columns]]
    places = np.cumsum([HEADER, len(firsts), endings.size])
    header = [buckets, len(endings), sum(map(len, tokens)), columns, *places]
    ints = [np.array(header), firsts, endings[order].ravel(), *(part.ravel() for part in tokens)]
    sharp = [sharpened(part, sharpness).ravel() for part in masses]
    return Backoff(np.concatenate(ints, dtype=np.int32), np.concatenate(sharp, dtype=np.float32))


def hashes(endings: np.ndarray) -> np.ndarray:
    """[n] what `lade.memory.hashing.hashed` gives for [n, CONTEXT] tokens, all at once."""
    code = np.full(len(endings), SPREAD, np.uint64)
    for column in endings.T:
        code = ((code ^ (column.astype(np.int64) & MASK).astype(np.uint64)) * np.uint64(FACTOR)) & np.uint64(MASK)
        code ^= code >> np.uint64(15)
    return code.astype(np.int64)


@compiled
def find_warm(ints: Array, masses: Array, a: int, b: int, c: int, d: int) -> tuple[int, int]:
    """The prediction for the longest known suffix of a context, and its length; 0 for the last token alone.

    Returns:
        -1 and 0 if there is none.
    """
    if ints[ENDINGS] > 0:
        for length in range(CONTEXT, 0, -1):
            first, second, third = shortened(a, b, c, length)
            bucket = ints[FIRSTS] + (hashed(first, second, third, d) & (ints[BUCKETS] - 1))
            for row in range(ints[bucket], ints[bucket + 1]):
                at = ints[ENDING] + row * CONTEXT
                if ints[at + 3] == d and ints[at + 2] == third and ints[at + 1] == second and ints[at] == first:
                    return row, length
    row = ints[ENDINGS] + d
    if d >= 0 and row < ints[NUMBER] and masses[row * ints[COLUMNS]] > 0:
        return row, 0
    return -1, 0


def sharpened(probabilities: np.ndarray, sharpness: float) -> np.ndarray:
    """[n, k] probabilities at this inverse temperature; the sum of each row does not change."""
    largest = probabilities.max(axis=1, keepdims=True, initial=TINY)
    powers = (probabilities / largest) ** sharpness
    scale: np.ndarray = probabilities.sum(axis=1, keepdims=True) / np.maximum(powers.sum(axis=1, keepdims=True), TINY)
    return powers * scale
