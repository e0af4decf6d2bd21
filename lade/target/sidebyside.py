"""Attention of texts of equal length side by side, each with one new token.

In half precision torch's attention takes longer on a CPU than two batched products: it multiplies each head's one query
by itself. Knows the arguments of transformers' attention functions, no model.

R texts, H heads of keys and values, each for G query heads; K keys of a text; D and E head sizes.
"""

from __future__ import annotations

from typing import Any

import torch

from lade.kernels.rows import Rules, scale_of
from lade.target.definition import dense
from lade.target.folding import fold

BUFFER = "lade_buffer"  # on keys and values: what they are the first tokens of


class SideBySide:
    """A forward of one token of each text, for the dispatcher of `lade.target.attention`."""

    rows = 1  # of a packed forward, which this is not

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        position_bias: torch.Tensor | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        """What transformers' attention functions return for one layer in evaluation mode: [R, 1, G * H, E].

        Args:
            query: [R, G * H, 1, D]
            key, value: [R, H, K, D] and [R, H, K, E]
            mask: [R or 1, G * H or 1, 1, K] bool or additive; `None` hides nothing.
            position_bias: [R or 1, G * H, 1, K], added to the scores.
        """
        rules = Rules(scale_of(query, scaling), cap=softcap, sinks=s_aux)
        hidden = _with_bias(mask, position_bias)
        if hidden is None and softcap is None and s_aux is None:
            return _plain(query, key, value, rules.scale), None
        return dense(query, key, value, hidden, rules), None


def first_of(buffer: torch.Tensor, tokens: int) -> torch.Tensor:
    """The first tokens of keys or values [R, H, K, D], which may be attended to by products with all of the buffer.

    torch's product copies a part of a buffer, and not a whole one.

    Args:
        buffer: has finite numbers behind these tokens.
    """
    part = buffer[:, :, :tokens]
    setattr(part, BUFFER, buffer)
    return part


def _plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """[R, 1, G * H, E]. Keys that are the first factor are not copied by torch's product."""
    seen = key.shape[2]
    if hasattr(key, BUFFER) and hasattr(value, BUFFER):
        key, value = getattr(key, BUFFER), getattr(value, BUFFER)
    folded = fold(query, query.shape[1] // key.shape[1])
    scores = (key @ folded.transpose(2, 3)).transpose(2, 3).contiguous().mul_(scale)  # [R, H, G, K]
    scores[..., seen:] = -torch.inf
    return (scores.softmax(3) @ value).flatten(1, 2).unsqueeze(1)


def _with_bias(mask: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor | None:
    """The mask and a bias as one mask."""
    if mask is None or bias is None:
        return bias if mask is None else mask
    return bias.masked_fill(~mask, torch.finfo(bias.dtype).min) if mask.dtype == torch.bool else bias + mask
