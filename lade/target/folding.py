"""Query heads of a group folded into the query axis, so that keys and values are never repeated. Knows tensors only.

B rows, T nodes, H heads of keys and values, each for G query heads, D head size.
"""

from __future__ import annotations

import torch


def fold(query: torch.Tensor, group: int) -> torch.Tensor:
    """[B, H, T * G, D] from [B, G * H, T, D]."""
    if group == 1:
        return query
    rows, heads, nodes, size = query.shape
    heads //= group
    return query.view(rows, heads, group, nodes, size).transpose(2, 3).reshape(rows, heads, nodes * group, size)


def unfold(output: torch.Tensor, group: int) -> torch.Tensor:
    """[B, T, G * H, D] from [B, H, T * G, D], contiguous, since some models take views of it."""
    rows, shared, folded, size = output.shape
    heads = output.view(rows, shared, folded // group, group, size).permute(0, 2, 1, 3, 4)
    return heads.reshape(rows, folded // group, -1, size).contiguous()


def fold_heads(numbers: torch.Tensor, group: int, folded: int) -> torch.Tensor:
    """[1, H, T * G] of one number per query head, [G * H].

    Args:
        folded: T * G.
    """
    return numbers.view(1, -1, group).repeat(1, 1, folded // group)


def fold_mask(mask: torch.Tensor, group: int) -> torch.Tensor:
    """What hides keys from folded queries: [B, H or 1, T * G, K] of a mask [B, G * H or 1, T, K].

    That of one node stays as it is where all heads share it: [B, 1, 1, K] fits by broadcasting.
    """
    if mask.shape[1] > 1:
        return fold(mask, group)
    return mask if group == 1 or mask.shape[2] == 1 else mask.repeat_interleave(group, 2)
