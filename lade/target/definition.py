"""Attention by its definition: for soft caps and sinks, which PyTorch's attention does not know. Knows tensors only.

B rows, T queries and K keys of each, H heads of keys and values, each for G query heads, D and E head sizes.
"""

from __future__ import annotations

import torch

from lade.kernels.rows import Rules
from lade.target.folding import fold, fold_heads, unfold


def dense(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, rules: Rules
) -> torch.Tensor:
    """[B, T, G * H, E]

    Args:
        query: [B, G * H, T, D]
        key, value: [B, H, K, D] and [B, H, K, E]
        mask: [B or 1, G * H or 1, T, K] bool, True where a query sees a key, or added to the scores; `None` hides
            nothing.
        rules: without window and chunk, which the mask tells.
    """
    group = query.shape[1] // key.shape[1]
    if mask is not None:
        mask = mask.repeat_interleave(group, 2) if mask.shape[1] == 1 else fold(mask, group)
    return unfold(attend(fold(query, group), key, value, mask, rules, group), group)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    rules: Rules,
    group: int,
) -> torch.Tensor:
    """[B, H, T * G, E] for folded queries [B, H, T * G, D] and a folded mask; the softmax is at least of float32."""
    scores = query @ key.transpose(2, 3) * rules.scale
    if rules.cap is not None:
        scores = torch.tanh(scores / rules.cap) * rules.cap
    if mask is not None:
        lowest = torch.finfo(scores.dtype).min  # not infinite, since padding sees nothing
        scores = scores.masked_fill(~mask, lowest) if mask.dtype == torch.bool else scores + mask
    if rules.sinks is not None:
        sinks = fold_heads(rules.sinks.to(scores), group, query.shape[2]).unsqueeze(3)
        scores = torch.cat([scores, sinks.expand(len(scores), -1, -1, -1)], 3)
    weights = scores.softmax(3, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
    return weights[..., : key.shape[2]] @ value
