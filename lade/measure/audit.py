"""The first divergence of two texts, and whether rounding explains it, for half precision and quantised weights.

There a wide forward and a one-token forward differ in the last bits, so texts may diverge where the two likeliest
tokens nearly tie. A divergence is explained where the one-token top-2 gap is at most max(4 ulp, twice the difference
that plain transformers shows at that position between a one-token and an eight-token causal forward).
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import DynamicCache

ULPS = 4
BLOCK = 8  # tokens of the wide forward


@dataclass(frozen=True, slots=True)
class Parting:
    """The first difference between two texts.

    Attributes:
        index: position in the sequence, prompt included.
        tokens: the token of each text at that position.
        gap: one-token top-2 gap of the logits.
        allowed: the widest gap that rounding explains.
        ulp: unit in the last place of the model's dtype, at the size of the largest logit.
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
        """All fields and properties."""
        return asdict(self) | {"ulps": self.ulps, "explained": self.explained}


@torch.no_grad()
def parting(model: Any, one: torch.Tensor, other: torch.Tensor, prompt_length: int) -> Parting | None:
    """Compare two greedy texts of one prompt.

    Args:
        one, other: [length] token ids, prompt first.
        prompt_length: tokens of the prompt.

    Returns:
        The first divergence, or `None` where the texts are equal or one is a prefix of the other.
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
    """[V] float32 logits after the last token: decoded one by one, and with the last `BLOCK` tokens in one forward."""
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
