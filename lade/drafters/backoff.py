"""What a model's warm table expects after a context: the longer a context and the oftener seen, the more it counts.

The model's predictions at all places of its own texts that end in the same tokens are averaged. n places count
n / (n + DOUBT), what one token less of context expects counts the rest, down to the table's entry for the last token
alone: Witten-Bell smoothing (Chen and Goodman, cmp-lg/9606011) of predictions in place of counts. Knows no tree.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from lade.drafters.recycle import CONTEXT, NOTHING, Context
from lade.drafters.stages import TOP
from lade.warmtable import WarmTable

DOUBT = 2.5
AVERAGED = 256  # places of one context that are looked at
REMEMBERED = 1 << 15  # contexts whose expectation is kept
TABLES = 4  # tables and temperatures prepared at once

Entry = tuple[list[int], list[float]]  # tokens, their probabilities, likeliest first; not to be changed
Span = tuple[int, int]  # of places in their order: from the first on, the second one left out


@lru_cache(maxsize=TABLES)
def backoff(table: WarmTable, sharpness: float) -> Backoff:
    """The one that calls with this table and this sharpness share."""
    return Backoff(table, sharpness)


class Backoff:
    """Expectations by context.

    Args:
        sharpness: inverse temperature at which tokens are chosen; above 1 for greedy decoding.
    """

    def __init__(self, table: WarmTable, sharpness: float) -> None:
        self._table, self._sharpness, texts = table, sharpness, table.texts
        self._places = Places(texts.written.numpy())
        tokens, probabilities = (part.flatten(0, 1)[:, :TOP].numpy() for part in (texts.tokens, texts.probabilities))
        self._tokens = tokens[self._places.order]  # in the order of the places
        self._probabilities = sharpened(probabilities, sharpness)[self._places.order]
        self.entry = lru_cache(REMEMBERED)(self._entry)
        self._smoothed = lru_cache(REMEMBERED)(self._smooth)

    def _entry(self, context: Context) -> tuple[int, list[int], list[float]]:
        """How many of the last tokens stand together in the texts, and what to expect after them."""
        length = len(list(self._places.ending(context)))
        return length, *(self._smoothed(context[-length:]) if length else self._alone(context[-1]))

    def _smooth(self, ending: tuple[int, ...]) -> Entry:
        """What to expect after tokens that the texts have."""
        *_, (first, end) = self._places.ending(ending)
        share = (end - first) / (end - first + DOUBT)
        tokens, probabilities = self._average(first, end)
        mixed = dict(zip(tokens, [share * probability for probability in probabilities], strict=True))
        shorter = self._smoothed(ending[1:]) if len(ending) > 1 else self._alone(ending[0])
        for token, probability in zip(*shorter, strict=True):
            mixed[token] = mixed.get(token, 0.0) + (1 - share) * probability
        best = sorted(mixed, key=mixed.__getitem__, reverse=True)[:TOP]
        return best, [mixed[token] for token in best]

    def _average(self, first: int, end: int) -> Entry:
        """Over the places of a span, or as many of them, evenly, as are looked at; in no order."""
        some = slice(first, end, -(-(end - first) // AVERAGED))
        tokens, where = np.unique(self._tokens[some], return_inverse=True)
        sums = np.bincount(where.ravel(), self._probabilities[some].ravel())
        return tokens.tolist(), (sums / len(self._tokens[some])).tolist()

    def _alone(self, token: int) -> Entry:
        """What the table says after one token, whatever stood before it."""
        tokens, probabilities = self._table.entry(token)
        return tokens[:TOP], sharpened(np.array([probabilities[:TOP]]), self._sharpness)[0].tolist()


class Places:
    """All places of some texts in the order of the tokens that lead to them, the last token first.

    Attributes:
        order: [R * L] places, counted through the texts.
    """

    def __init__(self, texts: np.ndarray) -> None:
        before = [np.full_like(texts, NOTHING) for _ in range(CONTEXT)]
        for back, tokens in enumerate(before):  # how many tokens earlier
            tokens[:, back:] = texts[:, : texts.shape[1] - back]
        columns = [tokens.ravel() for tokens in before]
        self.order = np.lexsort(columns[::-1])
        self._columns: list[Sequence[int]] = [column[self.order].tolist() for column in columns]

    def ending(self, context: tuple[int, ...]) -> Iterator[Span]:
        """The places that end in the last token of the context, in its last two, and so on while there are any."""
        first, end = 0, len(self.order)
        for token, column in zip(reversed(context), self._columns, strict=False):
            first, end = bisect_left(column, token, first, end), bisect_right(column, token, first, end)
            if first == end:
                return
            yield first, end


def sharpened(probabilities: np.ndarray, sharpness: float) -> np.ndarray:
    """[n, k] probabilities of being chosen, at this inverse temperature; the sum of each row stays what it is."""
    largest = probabilities.max(axis=1, keepdims=True, initial=1e-30)
    powers = (probabilities / largest) ** sharpness
    whole: np.ndarray = probabilities.sum(axis=1, keepdims=True) / np.maximum(powers.sum(axis=1, keepdims=True), 1e-30)
    return powers * whole
