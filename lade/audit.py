"""Where two texts part, and whether rounding explains it: the report for half precision and quantised weights.

A wide forward and a one-token forward differ in the last bits there, so texts may part where the two likeliest tokens
are as good as tied. A parting is explained where the one-token top-2 gap is at most max(4 ulp, twice what plain
transformers itself shows at that position between a one-token and an eight-token causal forward).
"""

from __future__ import annotations

from dataclasses import dataclass
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
    """

    index: int
    tokens: tuple[int, int]
    gap: float
    allowed: float

    @property
    def explained(self) -> bool:
        return self.gap <= self.allowed


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
    narrow = _logits_at(model, one[:index], prompt_length, 1)
    wide = _logits_at(model, one[:index], prompt_length, BLOCK)
    top = narrow.topk(2).values
    ulp = torch.finfo(model.dtype).eps * narrow.abs().max().item()
    own = (narrow - wide).abs().max().item()
    tokens = (int(one[index]), int(other[index]))
    return Parting(index, tokens, (top[0] - top[1]).item(), max(ULPS * ulp, 2 * own))


def _logits_at(model: Any, tokens: torch.Tensor, prompt_length: int, block: int) -> torch.Tensor:
    """[V] float32 logits after the last token: the prompt at once, token by token, the last `block` together."""
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    tokens = tokens.to(model.device)[None]
    length = tokens.shape[1]
    first = min(prompt_length, length - 1)
    last = max(length - block, first)
    logits = torch.zeros(0)
    for start, end in [(0, first), *((index, index + 1) for index in range(first, last)), (last, length)]:
        if start < end:
            logits = model(input_ids=tokens[:, start:end], past_key_values=cache, use_cache=True).logits[0, -1]
    return logits.float()
