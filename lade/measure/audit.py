"""Where two texts part, and whether rounding explains it: the report for half precision and quantised weights.

A wide forward and a one-token forward differ in the last bits there, so texts may part where the two likeliest tokens
are as good as tied. A parting is explained where the one-token top-2 gap is at most max(4 ulp, twice what plain
transformers itself shows at that position between a one-token and an eight-token causal forward).
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import DynamicCache

ULPS = 4
BLOCK = 8  # tokens of the wide forward that plain decoding is measured against


@dataclass(frozen=True, slots=True)
class Parting:
    """The first difference between two texts.

    Attributes:
        index: position in the sequence, prompt included.
        tokens: what either text says there.
        gap: one-token top-2 gap of the logits there.
        allowed: the widest gap that rounding explains.
        ulp: the distance of neighbouring numbers of the model's dtype, at the size of the largest logit there.
    """

    index: int
    tokens: tuple[int, int]
    gap: float
    allowed: float
    ulp: float

    @property
    def explained(self) -> bool:
        return self.gap <= self.allowed

    @property
    def ulps(self) -> float:
        return self.gap / self.ulp

    def as_dict(self) -> dict[str, Any]:
        """All fields and what follows from them."""
        return asdict(self) | {"ulps": self.ulps, "explained": self.explained}


@torch.no_grad()
def parting(model: Any, one: torch.Tensor, other: torch.Tensor, prompt_length: int) -> Parting | None:
    """Compare two greedy texts of one prompt.

    Args:
        one, other: [length] token ids, prompt first.

    Returns:
        Where they part, or `None` where one is the other or its beginning.
    """
    shared = min(len(one), len(other))
    differs = (one[:shared] != other[:shared]).nonzero()
    if not len(differs):
        return None
    index = int(differs[0])
    narrow, wide = _logits_after(model, one[:index], prompt_length)
    top = narrow.topk(2).values
    ulp = torch.finfo(model.dtype).eps * narrow.abs().max().item()
    own = (narrow - wide).abs().max().item()
    tokens = (int(one[index]), int(other[index]))
    return Parting(index, tokens, (top[0] - top[1]).item(), max(ULPS * ulp, 2 * own), ulp)


def _logits_after(model: Any, tokens: torch.Tensor, prompt_length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[V] float32 logits after the last token, decoded one by one, and with the last `BLOCK` tokens in one forward."""
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    tokens = tokens.to(model.device)[None]
    length = tokens.shape[1]
    first = min(prompt_length, length - 1)
    last = max(length - BLOCK, first)
    if first:
        _forward(model, tokens[:, :first], cache)
    for index in range(first, last):
        _forward(model, tokens[:, index : index + 1], cache)
    wide = _forward(model, tokens[:, last:], deepcopy(cache))
    narrow = wide
    for index in range(last, length):
        narrow = _forward(model, tokens[:, index : index + 1], cache)
    return narrow, wide


def _forward(model: Any, tokens: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
    return model(input_ids=tokens, past_key_values=cache, use_cache=True).logits[0, -1].float()
