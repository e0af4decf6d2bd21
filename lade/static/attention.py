"""Attention of a static step as an implementation of transformers, for models that are loaded with it by name."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from lade.target.grouped import GroupedForward

NAME = "lade_static"


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """An attention function of transformers: lade's where keys have more rows than queries, else SDPA."""
    if key.shape[0] == query.shape[0]:
        found: tuple[torch.Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return found
    return GroupedForward().attend(query, key, value, attention_mask, **kwargs)


def register() -> None:
    """Let models be loaded with `attn_implementation="lade_static"`, whose other forwards are those of SDPA."""
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
