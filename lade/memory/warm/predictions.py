"""A model's predictions after tokens that follow a common prefix: logits, and the likeliest tokens of them.

R rows, V vocabulary, k most likely tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lade.core.topk import exactly_likeliest
from lade.memory.warm.forward import forward
from lade.memory.warm.textcache import text_cache

BLOCK = 1 << 18  # logits that are ranked at once on a CPU: 1 MiB in float32 stays in its cache
GROUP = 64  # neighbouring logits whose maximum is compared first


def likeliest_by_block(logits: torch.Tensor, top: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[R, k] tokens, likeliest first, and their exact [R, k] probabilities in float32, of [R, V] logits."""
    size = logits.shape[1]
    if logits.device.type != "cpu" or size < 2 * top * GROUP:
        return exactly_likeliest(logits.float(), top)
    parts = [_likeliest(part.float(), top) for part in torch.split(logits, max(1, BLOCK // size))]
    tokens, probabilities = zip(*parts, strict=True)
    return torch.cat(tokens), torch.cat(probabilities)


def _likeliest(logits: torch.Tensor, top: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in half the time of `torch.topk`: the k largest logits lie in the k groups with the largest maxima."""
    rows, size = logits.shape
    whole = size // GROUP * GROUP
    groups = logits[:, :whole].view(rows, -1, GROUP).amax(-1).topk(top).indices  # [R, k]
    indices = (GROUP * groups[:, :, None] + torch.arange(GROUP)).flatten(1)  # [R, k GROUP]
    indices = torch.cat([indices, torch.arange(whole, size).expand(rows, -1)], dim=1)
    tokens = indices.gather(1, logits.gather(1, indices).topk(top).indices)
    return tokens, logits.softmax(1).gather(1, tokens)


class AfterPrefix:
    """The model's logits after a prefix and one more token. The prefix's keys and values are computed once.

    Args:
        prefix: tokens; may be empty.
        rows: R, the most tokens that one forward gets.
    """

    def __init__(self, model: Any, prefix: Sequence[int], rows: int) -> None:
        self.model = model
        self.prefix = torch.tensor([[*prefix]], dtype=torch.int64, device=model.device)  # [1, P]
        self.length = len(prefix)
        self.cache = text_cache(model, rows, self.length + 1) if prefix else None
        if self.cache is not None:
            self._forward(self.prefix)
            if self.cache.get_seq_length() != self.length:  # a model that keeps its state elsewhere
                self.cache = None
            else:
                self.cache.share()

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """[r, V] logits after the prefix and each of r tokens."""
        ids = tokens[:, None]
        if self.cache is None:
            ids = torch.cat([self.prefix.expand(len(tokens), -1), ids], dim=1)
        else:
            self.cache.cut(self.length)
        return self._forward(ids)

    def _forward(self, ids: torch.Tensor) -> torch.Tensor:
        seen = 0 if self.cache is None else self.cache.get_seq_length()
        logits: torch.Tensor = forward(self.model, ids, seen, self.cache, keeps=self.cache is not None).logits[:, -1]
        return logits
