"""A warm table as arrays of the device: the keys of its contexts, sorted, and its predictions as the host has them.

M contexts, k tokens of a prediction.
"""

from __future__ import annotations

import numpy as np
import torch

from lade.memory import backoff
from lade.memory.backoff import TINY, Backoff
from lade.memory.context import CONTEXT
from lade.memory.predictions import TOP
from lade.static.rounds.recall import LONGEST, keys_of


class WarmArrays:
    """Predictions for the longest suffix of a context that is known, of at most `LONGEST` tokens.

    Args:
        known: the predictions at an inverse temperature of 1.
        inverse_temperatures: [S] of those that are found, by slot.
    """

    def __init__(self, known: Backoff, inverse_temperatures: torch.Tensor) -> None:
        ints, device = known.ints, inverse_temperatures.device
        self._inverse_temperatures = inverse_temperatures
        endings_at, tokens_at = ints[[backoff.ENDING, backoff.TOKENS]].tolist()
        self._endings, rows, columns = ints[[backoff.ENDINGS, backoff.NUMBER, backoff.COLUMNS]].tolist()
        endings = torch.from_numpy(ints[endings_at : endings_at + self._endings * CONTEXT].reshape(-1, CONTEXT)).long()
        lengths, keys = (endings >= 0).sum(1), keys_of(endings[:, CONTEXT - LONGEST :])
        self._sorted = []  # per length: the keys of its endings, ascending, and their rows
        for length in range(1, LONGEST + 1):
            own = (lengths == length).nonzero()[:, 0]
            own = own[keys[own, length - 1].argsort()]
            self._sorted.append((keys[own, length - 1].to(device), own.to(device)))
        self._tokens = _padded(ints[tokens_at:].reshape(rows, columns)).to(device)
        masses = _padded(known.masses.reshape(rows, columns)).to(device)
        self._sums = masses.sum(1, keepdim=True)
        self._relative = masses / masses.amax(1, keepdim=True).clamp(min=TINY)  # to the largest of each row

    def find(self, slots: torch.Tensor, contexts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[M, k] tokens and probabilities after [M, LONGEST] contexts in [M] slots; 0 where nothing is known."""
        last, keys = contexts[:, -1], keys_of(contexts)
        alone = self._endings + last
        inside = (last >= 0) & (alone < len(self._relative))
        rows = torch.where(inside, alone, 0)
        for (known, own), key in zip(self._sorted, keys.unbind(1), strict=True):
            if len(known):
                place = torch.searchsorted(known, key.contiguous()).clamp(max=len(known) - 1)
                rows = torch.where(known[place] == key, own[place], rows)
        powers = self._relative[rows] ** self._inverse_temperatures[slots][:, None]  # as `backoff.sharpened`
        scale = self._sums[rows] / powers.sum(1, keepdim=True).clamp(min=TINY)
        return self._tokens[rows].long(), powers * scale * inside[:, None]


def _padded(columns: np.ndarray) -> torch.Tensor:
    """[n, TOP]"""
    return torch.nn.functional.pad(torch.from_numpy(columns), (0, TOP - columns.shape[1]))
