"""Launches of products of few tokens with weights. Tensors in, tensors out; knows no model.

T tokens, K numbers of each, N lines of a weight. Sums are of float32 and rounded where PyTorch's operations round.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from lade.kernels.between import HALVES
from lade.kernels.chain import chained
from lade.kernels.machine import processors, shared_memory
from lade.kernels.sizes import AHEAD, APART, MOST, WARPS, Sizes, program_tokens, sizes_of

WEIGHTS = 3  # of a launch, at most
NEVER = 1 << 30  # as the first tile of a weight that is not there
TILES = 1 << 12  # of a launch that splits K, at most


class _Weights(NamedTuple):
    """Where the second and the third weight of a launch are.

    Attributes:
        tiles: of all weights.
        lines: of each weight.
        starts: their first tiles.
        apart: how many times `APART` numbers they lie behind the first one.
    """

    tiles: int
    lines: list[int]
    starts: list[int]
    apart: list[int]


def fit(states: torch.Tensor, *weights: torch.Tensor) -> bool:
    """Whether `linear` takes [..., T, K] states and all these weights in one launch."""
    size, first = states.shape[-1], weights[0]
    if states.dtype not in HALVES or not 0 < states.numel() <= MOST * size or size % APART or len(weights) > WEIGHTS:
        return False
    alike = all(weight.dtype == states.dtype and weight.device == states.device for weight in weights)
    shapes = all(weight.ndim == 2 and weight.shape[1] == size and len(weight) for weight in weights)
    dense = states.is_contiguous() and all(weight.is_contiguous() for weight in weights)
    return alike and shapes and dense and all(_apart(first, weight) is not None for weight in weights)


def linear(
    states: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None],
    residual: torch.Tensor | None = None,
    sizes: Sizes | None = None,
) -> torch.Tensor:
    """[..., T, N] products of [..., T, K] states with [N, K] weights, one behind the other.

    Args:
        weights: up to `WEIGHTS`.
        biases: [N] of each weight, or all `None`.
        residual: contiguous [..., T, N] that is added.
        sizes: of a program; `None`: as `sizes_of` says.
    """
    return _multiplied(states, weights, biases, residual, sizes)


def gated(states: torch.Tensor, gates: torch.Tensor, values: torch.Tensor, sizes: Sizes | None = None) -> torch.Tensor:
    """[..., T, N]: SiLU(states * gates) * (states * values), of [N, K] weights (arXiv 2002.05202)."""
    return _multiplied(states, (gates, values), (None,), None, sizes, pair=True)


def _multiplied(
    states: torch.Tensor, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None],
    residual: torch.Tensor | None, sizes: Sizes | None, pair: bool = False,
) -> torch.Tensor:  # fmt: skip
    size, device, kernels = states.shape[-1], states.device, _kernels()
    tokens, lines = states.numel() // size, len(weights[0]) if pair else sum(map(len, weights))
    if sizes is None:
        sizes = sizes_of(tokens, lines, size, processors(device), shared_memory(device), pair)
    layout = _laid_out(weights, sizes.lines, pair)
    out = states.new_empty(*states.shape[:-1], lines)
    scratch, counters = states, states  # which nothing reads
    if sizes.split > 1:
        scratch = states.new_empty(sizes.split, tokens, lines, dtype=torch.float32)
        counters = _counters(device)
    bias, *others = biases
    kernels.multiply[layout.tiles, sizes.split](
        states, weights[0], out, states if bias is None else bias, states if residual is None else residual,
        scratch, counters,
        tokens, size, lines, *layout.lines, *layout.starts, *layout.apart, *_biases_apart(bias, others),
        BT=program_tokens(tokens), BN=sizes.lines, BK=sizes.numbers, SPLIT=sizes.split, EVEN=size % sizes.numbers == 0,
        SWAP=sizes.swap, PAIR=pair, BIAS=bias is not None, RESIDUAL=residual is not None, STAGES=sizes.stages,
        AHEAD=AHEAD, WIDEN=kernels.interpreted, num_warps=WARPS, **chained(device),
    )  # fmt: skip
    return out


def _laid_out(weights: Sequence[torch.Tensor], tile: int, pair: bool) -> _Weights:
    lines = [len(weight) for weight in weights[: 1 if pair else WEIGHTS]]
    tiles = [-(-count // tile) for count in lines]
    starts = [sum(tiles[:place]) for place in range(1, len(tiles))]
    apart = [_apart(weights[0], weight) or 0 for weight in weights[1:]]
    return _Weights(sum(tiles), _filled(lines, WEIGHTS, 0), _filled(starts, WEIGHTS - 1, NEVER), _filled(apart, 2, 0))


def _filled(numbers: list[int], count: int, other: int) -> list[int]:
    return numbers + [other] * (count - len(numbers))


def _apart(first: torch.Tensor, weight: torch.Tensor) -> int | None:
    """How many times `APART` numbers a weight lies behind the first one; `None` if it is no whole number."""
    numbers, rest = divmod(weight.data_ptr() - first.data_ptr(), APART * weight.itemsize)
    return numbers if rest == 0 and abs(numbers) < 1 << 31 else None


def _biases_apart(first: torch.Tensor | None, others: Sequence[torch.Tensor | None]) -> list[int]:
    """How many numbers other biases lie behind the first one."""
    if first is None:
        return [0, 0]
    apart = [(other.data_ptr() - first.data_ptr()) // first.itemsize for other in others if other is not None]
    return _filled(apart, WEIGHTS - 1, 0)


@functools.lru_cache(maxsize=8)
def _counters(device: torch.device) -> torch.Tensor:
    """[tiles] programs of each that have ended; zero between launches."""
    return torch.zeros(TILES, dtype=torch.int32, device=device)


@functools.lru_cache(maxsize=1)
def _kernels() -> Any:
    from lade.kernels import multiply

    return multiply
