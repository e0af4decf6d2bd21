"""Launches of the kernels between a layer's products. Tensors in, tensors out; knows no model.

Each gives what PyTorch's operations give, but for the order of a sum, in the types of `HALVES`.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from lade.base.powers import power_of_two
from lade.kernels.chain import chained

HALVES = (torch.bfloat16, torch.float16)
LARGEST_LINE = 1 << 15  # numbers of a line that one program normalises
LARGEST_HEADS = 1 << 14  # numbers of a token's heads that one program rotates
BLOCK = 1024  # numbers that one program gates
MOVED = 16  # tokens that one program moves at once
EXACT = {"enable_fp_fusion": False}  # products are rounded before they are added, as PyTorch's are


def rms_norm(states: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """[..., M] over the root of the mean square of each line, times [M] weights (arXiv 1910.07467)."""
    return _normalised(states, None, weight, epsilon)[1]


def added_norm(
    states: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """[..., M] sums with a residual, and these after `rms_norm`."""
    return _normalised(states, residual, weight, epsilon)


def _normalised(
    states: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    size = weight.numel()
    out, power = torch.empty_like(states), power_of_two(size)
    sums = states if residual is None else torch.empty_like(states)
    _kernels().rms_norm[states.numel() // size,](
        states, states if residual is None else residual, sums, weight, out, epsilon, size, power,
        RESIDUAL=residual is not None, num_warps=min(16, max(1, power // 512)), **EXACT, **chained(states.device),
    )  # fmt: skip
    return sums, out


def norm_fits(states: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether `rms_norm` takes these."""
    size = weight.numel()
    right = states.dtype == weight.dtype and states.dtype in HALVES and states.shape[-1] == size <= LARGEST_LINE
    return right and states.is_contiguous() and weight.is_contiguous() and states.numel() > 0


def added_norm_fits(states: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether `added_norm` takes these."""
    return states.shape == residual.shape and norm_fits(states, weight) and norm_fits(residual, weight)


def rotate(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries [1, H, N, D] and keys [1, S, N, D] with rotary positions by [1, N, D] (arXiv 2104.09864)."""
    turned = torch.empty_like(query), torch.empty_like(key)
    (_, heads, tokens, size), shared = query.shape, key.shape[1]
    _kernels().rotate[tokens, 2](
        query, key, *turned, cos, sin, heads, shared,
        *(stride for states in (query, key, *turned) for stride in states.stride()[1:3]),
        power_of_two(heads), power_of_two(shared), size, power_of_two(size // 2), num_warps=4, **EXACT,
        **chained(query.device),
    )  # fmt: skip
    return turned


def rotation_fits(query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> bool:
    """Whether `rotate` takes these."""
    if query.ndim != 4 or key.ndim != 4 or query.shape[0] != 1 or query.dtype not in HALVES:
        return False
    tokens, size = query.shape[2:]
    angles = all(part.shape == (1, tokens, size) and part.is_contiguous() for part in (cos, sin))
    alike = query.dtype == key.dtype == cos.dtype == sin.dtype and key.shape[2:] == query.shape[2:]
    dense = query.stride(3) == key.stride(3) == 1
    return angles and alike and dense and size % 2 == 0 and tokens > 0 and query.shape[1] * size <= LARGEST_HEADS


def store(both: torch.Tensor, places: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Write keys and values [1, H, N, D] to [N] places of [2, H, total, D]."""
    _, heads, tokens, size = key.shape
    _kernels().store[tokens, 2](
        key, value, places, both, heads, *key.stride()[1:3], *value.stride()[1:3], *both.stride()[:3],
        power_of_two(heads), size, power_of_two(size), num_warps=4, **chained(key.device),
    )  # fmt: skip


def store_fits(both: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether `store` takes these."""
    _, heads, tokens, size = key.shape
    alike = both.dtype == key.dtype == value.dtype and key.shape == value.shape and tokens > 0
    return alike and both.stride(3) == key.stride(3) == value.stride(3) == 1 and heads * size <= LARGEST_HEADS


def move(states: torch.Tensor, sources: torch.Tensor, goals: torch.Tensor, refused: int) -> None:
    """Copy tokens of contiguous [L, H, total, D] from [N] places to others, but for goals from `refused` on.

    Args:
        sources, goals: both ascend in each row's part of the tokens, and no goal lies behind its source.
    """
    size = states.shape[3]
    _kernels().move[states.shape[:2]](
        states,
        sources,
        goals,
        len(sources),
        refused,
        *states.stride()[:2],
        size,
        power_of_two(size),
        MOVED,
        num_warps=1,
    )


def gated(gates: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """SiLU(gates) * values (arXiv 2002.05202)."""
    out = torch.empty_like(gates)
    count = gates.numel()
    _kernels().gate[-(-count // BLOCK),](gates, values, out, count, BLOCK, num_warps=4, **EXACT, **chained(out.device))
    return out


def gates_fit(gates: torch.Tensor, values: torch.Tensor) -> bool:
    """Whether `gated` takes these."""
    alike = gates.dtype == values.dtype and gates.dtype in HALVES and gates.shape == values.shape
    return alike and gates.is_contiguous() and values.is_contiguous() and gates.numel() > 0


@functools.lru_cache(maxsize=1)
def _kernels() -> Any:
    from lade.kernels import pointwise

    return pointwise
