"""A forward of texts of equal length, side by side. Chooses no token and keeps nothing.

R texts.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from lade.target.attention import NAME, can_pack, packed
from lade.target.sidebyside import SideBySide

SLOW = (torch.bfloat16, torch.float16)  # in which torch's attention takes longer on a CPU


def forward(model: Any, ids: torch.Tensor, seen: int, cache: Any, keeps: bool = True) -> Any:
    """The model's outputs after [R, n] tokens.

    Args:
        seen: tokens of each text before these.
        cache: that holds them; `None`: the model makes one.
        keeps: whether there shall be one afterwards.
    """
    with _attention(model, ids):
        return model(
            input_ids=ids,
            attention_mask=ids.new_ones(len(ids), seen + ids.shape[1]),
            position_ids=torch.arange(seen, seen + ids.shape[1], device=ids.device)[None],
            past_key_values=cache,
            use_cache=keeps,
            return_dict=True,
        )


def _attention(model: Any, ids: torch.Tensor) -> AbstractContextManager[object]:
    """The scope in which texts with one new token each attend by `lade.target.sidebyside`, where that is faster."""
    slow = ids.shape[1] == 1 and ids.device.type == "cpu" and model.dtype in SLOW
    if slow and can_pack(NAME):
        return packed(SideBySide())
    return nullcontext()
