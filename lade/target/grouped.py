"""Attention by masks for groups of query heads that share keys and values, which are not repeated for each of them.

transformers' SDPA repeats all of both in every layer where a mask is given. Knows the arguments of its attention
functions, no model. N nodes in one query, R rows that they belong to, H heads of keys and values, each for G query
heads, C keys of a row, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from lade.target.folding import fold, fold_mask, unfold


class GroupedForward:
    """A forward of nodes of one row or several, for the dispatcher of `lade.target.attention`.

    Args:
        traced: whether torch's compiler may find it, too: whoever opens the scope compiles all that is called in it,
            and calls that nowhere else.
    """

    rows = 1  # of the model's inputs

    def __init__(self, traced: bool = False) -> None:
        self.traced = traced
        self._folded: list[tuple[torch.Tensor, int, torch.Tensor]] = []  # masks, G, and what they become

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        """What transformers' attention functions return: [1, N, G * H, D].

        Args:
            query: [1, G * H, N, D]
            key, value: [R, H, C, D]
            mask: [R, G * H or 1, N, C] additive; hides from a row the nodes of others.
        """
        if mask is None or others.get("position_bias") is not None or others.get("softcap") is not None:
            raise NotImplementedError("the model changes its masks or its scores")
        group = query.shape[1] // key.shape[1]
        folded, hidden, found = fold(query, group), self._hidden(mask, group).to(query.dtype), None
        for row in range(key.shape[0]):
            own = slice(row, row + 1)
            part = scaled_dot_product_attention(folded, key[own], value[own], hidden[own], dropout, scale=scaling)
            found = part if found is None else torch.where(hidden[own].amax(-1, keepdim=True) == 0, part, found)
        assert found is not None
        return unfold(found, group), None

    def _hidden(self, mask: torch.Tensor, group: int) -> torch.Tensor:
        """Layers share masks, so each is folded once. torch 2.11's compiler knows no `id` of what it computes."""
        for known, heads, folded in self._folded:
            if known is mask and heads == group:
                return folded
        folded = fold_mask(mask, group)
        self._folded.append((mask, group, folded))
        return folded


def repeats(model: torch.nn.Module) -> bool:
    """Whether transformers' SDPA repeats keys and values in layers of a model."""
    return any(getattr(module, "num_key_value_groups", 1) > 1 for module in model.modules())
