"""Query heads of a group folded into the query axis, so that keys and values are never repeated. Knows tensors only.

T nodes, H heads of keys and values, each for G query heads, D head size.
"""

from __future__ import annotations

import torch


def fold(query: torch.Tensor, group: int) -> torch.Tensor:
    """[1, H, T * G, D] from [1, G * H, T, D]."""
    if group == 1:
        return query
    _, heads, nodes, size = query.shape
    return query.view(1, heads // group, group, nodes, size).transpose(2, 3).reshape(1, -1, nodes * group, size)


def unfold(output: torch.Tensor, group: int) -> torch.Tensor:
    """[1, T, G * H, D] from [1, H, T * G, D], contiguous, since some models take views of it."""
    _, shared, folded, size = output.shape
    heads = output.view(1, shared, folded // group, group, size).permute(0, 2, 1, 3, 4)
    return heads.reshape(1, folded // group, -1, size).contiguous()
