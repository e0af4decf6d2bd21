"""Forwards of texts side by side, one after the other, over a KV cache that is written in place. Chooses no token.

R texts, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch

from lade.facts.vocabulary import readable, writable
from lade.memory.warm.forward import forward
from lade.memory.warm.textcache import text_cache

LOGITS = 1 << 25  # of a forward that reads several places: 128 MiB in float32


class Reader:
    """A model that reads R texts of equal length.

    Args:
        capacity: tokens of a text, at most.

    Attributes:
        seen: tokens of a text that were read.
        cache: ours; `None` once the model uses a cache of its own, and before its first forward.
    """

    def __init__(self, model: Any, rows: int, capacity: int) -> None:
        self.model, self.rows, self.seen = model, rows, 0
        self.cache = text_cache(model, rows, capacity)
        self._cache: Any = self.cache

    def read(self, ids: torch.Tensor) -> torch.Tensor | None:
        """[r, V] logits after the last of [r, n] tokens; `None` if the model has no KV cache."""
        outputs = forward(self.model, ids, self.seen, self._cache)
        self.seen += ids.shape[1]
        self._cache = getattr(outputs, "past_key_values", None)
        if self._cache is None or (self.cache is not None and self._cache.get_seq_length() != self.seen):
            return None
        logits: torch.Tensor = outputs.logits[:, -1, : readable(self.model)]
        return logits

    def read_in_parts(self, ids: torch.Tensor) -> torch.Tensor | None:
        """The same for any number of tokens, few enough at once that their logits stay small."""
        places, logits = max(1, LOGITS // (self.rows * writable(self.model))), None
        for part in torch.split(ids, places, dim=1):
            logits = self.read(part)
        return logits
