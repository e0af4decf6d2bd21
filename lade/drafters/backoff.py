"""What a model's warm table expects after a context: the longer a context and the oftener seen, the more it counts.

The model's predictions at all places of its own texts that end in the same tokens are averaged. n places count
n / (n + DOUBT), what one token less of context expects counts the rest, down to the table's entry for the last token
alone: Witten-Bell smoothing (Chen and Goodman, cmp-lg/9606011) of predictions in place of counts. Knows no tree.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch

from lade.drafters.recycle import CONTEXT, NOTHING, Context
from lade.drafters.stages import TOP
from lade.warmtable import WarmTable

DOUBT = 2.5
AVERAGED = 256  # places of one context that are looked at, at most
FEW = 12  # places that are faster summed one by one
REMEMBERED = 1 << 15  # contexts, and endings, whose expectation is kept
TABLES = 8  # tables and temperatures prepared at once

Entry = tuple[list[int], list[float]]  # tokens, their probabilities, likeliest first; not to be changed
Span = tuple[int, int]  # of places in their order: from the first on, the second one left out


def backoff(table: WarmTable, sharpness: float) -> Backoff:
    """The one that calls with this table and about this sharpness share."""
    return _prepared(table, max(round(sharpness, 1), 0.1))


@lru_cache(maxsize=TABLES)
def _prepared(table: WarmTable, sharpness: float) -> Backoff:
    return Backoff(table, sharpness)


class Backoff:
    """Expectations by context.

    Args:
        sharpness: inverse temperature at which tokens are chosen; above 1 for greedy decoding.
    """

    def __init__(self, table: WarmTable, sharpness: float) -> None:
        texts = table.texts
        self._places = Places(texts.written.numpy())
        self._alone = _Predictions(table.tokens, table.probabilities, sharpness)
        self._after = _Predictions(
            texts.tokens.flatten(0, 1), texts.probabilities.flatten(0, 1), sharpness, self._places.order
        )
        self._known: dict[tuple[int, int], Entry] = {}  # by tokens of the ending, and the first of its places
        self.entry = lru_cache(REMEMBERED)(self._entry)

    def _entry(self, context: Context) -> tuple[int, list[int], list[float]]:
        """How many of the last tokens stand together in the texts, and what to expect after them."""
        token, length = context[-1], 0
        entry: Entry = self._alone.at(token) if 0 <= token < len(self._alone) else ([], [])
        for length, (first, end) in enumerate(self._places.ending(context), start=1):
            known = self._known.get((length, first))
            if known is None:
                known = self._known[length, first] = _smoothed(self._after.sums(first, end), end - first, entry)
            entry = known
        if len(self._known) > REMEMBERED:
            self._known.clear()
        return length, *entry


class _Predictions:
    """The likeliest tokens at many places, and how likely they are chosen.

    Args:
        tokens, probabilities: [n, k], most likely first.
        order: the places in another order.
    """

    def __init__(
        self,
        tokens: torch.Tensor,
        probabilities: torch.Tensor,
        sharpness: float,
        order: np.ndarray | slice = slice(None),
    ) -> None:
        self._tokens = tokens[:, :TOP].numpy()[order]
        self._probabilities = sharpened(probabilities[:, :TOP].numpy(), sharpness)[order]

    def __len__(self) -> int:
        return len(self._tokens)

    def at(self, place: int) -> Entry:
        return self._tokens[place].tolist(), self._probabilities[place].tolist()

    def sums(self, first: int, end: int) -> Iterator[tuple[int, float]]:
        """Tokens and their probabilities summed over places, or over some of many and scaled up."""
        stride = -(-(end - first) // AVERAGED)
        tokens, probabilities = self._tokens[first:end:stride], self._probabilities[first:end:stride]
        scale = (end - first) / len(tokens)
        if len(tokens) > FEW:
            tokens, where = np.unique(tokens, return_inverse=True)
            probabilities = np.bincount(where.ravel(), probabilities.ravel())
        return zip(tokens.ravel().tolist(), (scale * probabilities).ravel().tolist(), strict=True)


def _smoothed(sums: Iterable[tuple[int, float]], places: int, shorter: Entry) -> Entry:
    """What to expect after an ending, from its places and from what an ending one token shorter expects."""
    doubt = DOUBT / (places + DOUBT)
    mixed = {token: doubt * probability for token, probability in zip(*shorter, strict=True)}
    for token, summed in sums:
        mixed[token] = mixed.get(token, 0.0) + summed / (places + DOUBT)
    best = sorted(mixed, key=mixed.__getitem__, reverse=True)[:TOP]
    return best, [mixed[token] for token in best]


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
