"""A warm table as arrays of the device: sorted keys of its contexts, and one row per vocabulary entry.

M contexts, k tokens of a prediction, V entries.
"""

from __future__ import annotations

import numpy as np
import torch

from lade.memory.backoff import sharpened
from lade.memory.context import CONTEXT
from lade.memory.predictions import TOP
from lade.memory.warm.table import WarmTable
from lade.static.rounds.recall import LONGEST, keys_of


class WarmArrays:
    """Predictions of a table for the longest suffix of a context that it knows, of at most `LONGEST` tokens.

    Args:
        sharpness: inverse temperature of its probabilities.
    """

    def __init__(self, table: WarmTable, sharpness: float, device: torch.device) -> None:
        endings, contexts = table.contexts.endings, table.contexts
        lengths = (endings >= 0).sum(1)
        keys = keys_of(endings[:, CONTEXT - LONGEST :].long())
        columns = min(TOP, contexts.tokens.shape[1])
        parts, firsts = [torch.arange(len(table.tokens))], [0]
        self._keys: list[torch.Tensor] = []
        for length in range(1, LONGEST + 1):
            rows = (lengths == length).nonzero()[:, 0]
            order = rows[keys[rows, length - 1].argsort()]
            firsts.append(firsts[-1] + len(parts[-1]))
            parts.append(order)
            self._keys.append(keys[order, length - 1].to(device))
        self._firsts = firsts[1:]
        entries, behind = parts[0], torch.cat(parts[1:])
        masses = torch.cat([table.probabilities[entries, :columns], contexts.probabilities[behind, :columns]])
        tokens = torch.cat([table.tokens[entries, :columns], contexts.tokens[behind, :columns]])
        self._tokens = _padded(tokens).to(device, torch.int32)
        self._masses = _padded(torch.from_numpy(sharpened(masses.numpy().astype(np.float32), sharpness))).to(device)
        self._entries = len(entries)

    def find(self, contexts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[M, k] tokens and probabilities after [M, LONGEST] contexts; 0 where nothing is known."""
        rows, keys = contexts[:, -1].clamp(0, self._entries - 1), keys_of(contexts)
        for first, known, key in zip(self._firsts, self._keys, keys.unbind(1), strict=True):
            if len(known):
                place = torch.searchsorted(known, key.contiguous()).clamp(max=len(known) - 1)
                rows = torch.where(known[place] == key, first + place, rows)
        inside = (contexts[:, -1:] >= 0) & (contexts[:, -1:] < self._entries)
        return self._tokens[rows].long(), self._masses[rows] * inside


def _padded(columns: torch.Tensor) -> torch.Tensor:
    """[n, TOP]"""
    return torch.nn.functional.pad(columns, (0, TOP - columns.shape[1]))
