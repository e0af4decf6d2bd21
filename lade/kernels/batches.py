"""Causal attention of padded batches, as models call it, in one launch of the kernel.

B rows, T queries and K keys of each, H heads of keys and values, each for G query heads, D and E head sizes.
"""

from __future__ import annotations

import functools

import torch

from lade.kernels.blocks import takes
from lade.kernels.launch import attend
from lade.kernels.rows import Row, Rows, Rules


def can_flatten(states: torch.Tensor) -> bool:
    """Whether rows [B, H, K, D] lie at a whole number of tokens from each other, so that all are one axis of tokens."""
    batch, _, token, element = states.stride()
    return states.shape[0] == 1 or (element == 1 and token > 0 and batch % token == 0)


def fits(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether `causal` takes these."""
    if not takes(query.dtype, query.shape[3], value.shape[3]) or not query.dtype == key.dtype == value.dtype:
        return False
    return can_flatten(key) and can_flatten(value) and _apart(key) == _apart(value)


def causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rules: Rules) -> torch.Tensor:
    """[B, T, G * H, E] where the queries are those of the last T of K keys, and each sees what is not after it.

    Args:
        query: [B, G * H, T, D]
        key, value: [B, H, K, D] and [B, H, K, E], as `fits` says.
    """
    batch, heads, tokens, size = query.shape
    rows = _chains(batch, tokens, key.shape[2], _apart(key), query.device)
    flat = query.transpose(1, 2).reshape(batch * tokens, heads, size).transpose(0, 1)
    found = attend(flat, _flat(key), _flat(value), rows, rules)
    return found.view(batch, tokens, heads, -1)


def _apart(states: torch.Tensor) -> int:
    """Tokens from one row to the next."""
    return 0 if states.shape[0] == 1 else states.stride(0) // states.stride(2)


def _flat(states: torch.Tensor) -> torch.Tensor:
    """[H, tokens, D], all rows on one axis; other heads' tokens may lie between them."""
    batch, heads, keys, size = states.shape
    _, head, token, element = states.stride()
    return states.as_strided((heads, (batch - 1) * _apart(states) + keys, size), (head, token, element))


@functools.lru_cache(maxsize=16)  # layers of a forward share it
def _chains(batch: int, tokens: int, keys: int, apart: int, device: torch.device) -> Rows:
    rows = [Row(row * tokens, tokens, row * apart, keys - tokens, 0, tokens) for row in range(batch)]
    return Rows.of(rows, [0], device)
