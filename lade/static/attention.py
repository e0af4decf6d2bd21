"""Attention of a static step: all nodes in one query, each row with the keys of its own slot.

One function, so that a kernel can stand in its place. Registered with transformers as `NAME`, too.

N nodes, R rows, C tokens of a slot, H heads of keys and values, G query heads for each, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from lade.target.folding import fold, fold_mask, unfold

NAME = "lade_static"


def attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scaling: float | None = None
) -> torch.Tensor:
    """[1, N, G * H, D]: what the nodes of all rows see.

    Args:
        query: [1, G * H, N, D]
        keys, values: [R, H, C, D] the slots of the rows.
        mask: [R, 1, N, C] additive; hides from a row the nodes of others.
    """
    group = query.shape[1] // keys.shape[1]
    folded, found = fold(query, group), None  # [1, H, N * G, D]
    for row in range(keys.shape[0]):
        hidden = fold_mask(mask[row : row + 1], group).to(query.dtype)
        part = scaled_dot_product_attention(folded, keys[row : row + 1], values[row : row + 1], hidden, scale=scaling)
        found = part if found is None else torch.where(hidden.amax(-1, keepdim=True) == 0, part, found)
    assert found is not None
    return unfold(found, group)


class StaticForward:
    """A static step's forward, for the dispatcher of `lade.target.attention`."""

    rows = 1  # of the model's inputs

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
        """What transformers' attention functions return."""
        if mask is None or others.get("position_bias") is not None or others.get("softcap") is not None:
            raise NotImplementedError("the model changes its masks or its scores")
        return attend(query, key, value, mask, scaling), None


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """An attention function of transformers: `attend` where keys have more rows than queries, else SDPA."""
    if key.shape[0] == query.shape[0]:
        found: tuple[torch.Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return found
    return StaticForward().attend(query, key, value, attention_mask, **kwargs)


def register() -> None:
    """Let models be loaded with `attn_implementation="lade_static"`, whose other forwards are those of SDPA."""
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
