"""Linear layers of few tokens, by loops where these are faster on this machine.

Plain float32 weights: `lade.target.fused.products`; packed ones of 16 bits: `lade.weights.blockloops`.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import linear

from lade.base.bits import bits_of
from lade.base.threads import FORK, counters
from lade.target.fused.products import MULTIPLY, UNIT
from lade.weights.blockloops import MULTIPLY_BLOCKS, multiplied_by_blocks, threads_of
from lade.weights.blocks import blocks_of
from lade.weights.onednn import packed
from lade.weights.packed import BLOCKS, PackedProduct

TOKENS = 1, 2, 4, 8, 16, 32, 64  # whose times are compared, each for all numbers up to it; for more the loops are none
ELEMENTS = 1 << 21  # of the largest weight whose times are compared; of a larger one the first lines stand for all
# Bytes of weights that are read in turn, more than a core's own caches hold, as a model's are; and the most weights.
CACHED, MOST = 1 << 23, 16
ROUNDS = 2
# That comparing one shape may take. On a busy machine PyTorch's threads wait for each other at every product: a minute
# was seen for all shapes of a model.
SECONDS = 0.5
# Of PyTorch's time, that the loops must keep below. Those of blocks fetch ahead, which saves more in larger models.
GAIN, BLOCKS_GAIN = 0.95, 1.05

Compute = Callable[[torch.Tensor], torch.Tensor]
Pair = tuple[Sequence[Compute], Sequence[Compute], torch.Tensor]


class FewTokens:
    """What a linear layer computes.

    Args:
        weight: [N, K] float32, contiguous, on the CPU; nobody has put another tensor in its place (`Watch`).
        bias: [N], or `None`.
    """

    __slots__ = ("_numbers", "_where", "bias", "weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight, self.bias = weight, bias
        self._where, self._numbers = 0, np.empty(0, np.float32)

    @classmethod
    def of(cls, layer: nn.Module) -> FewTokens | None:
        """Of a layer of torch's own class; `None` where its weight is another one than a loop reads."""
        weight: Any = layer._parameters.get("weight")
        if type(layer) is not nn.Linear or type(weight) not in (torch.Tensor, nn.Parameter):
            return None
        fits = weight.dtype is torch.float32 and weight.device.type == "cpu" and weight.is_contiguous()
        return cls(weight, layer.bias) if fits and weight.numel() else None

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """[1, T, N] of [1, T, K]."""
        tokens, weight = states.shape[1], self.weight
        if not (tokens and MULTIPLY.ready and are_faster(tokens, *weight.shape)):
            return linear(states, weight, self.bias)
        if self._where != weight.data_ptr():
            self._numbers, self._where = weight.detach().numpy().reshape(-1), weight.data_ptr()
        found = multiplied(states, self._numbers, len(weight))
        return found if self.bias is None else found.add_(self.bias)


class FewBlocks:
    """What a linear layer computes whose packed weight lies in blocks.

    Args:
        blocks: the memory of the weight.

    Attributes:
        weight: [N, K] bfloat16, packed; of bfloat16 states, or a float32 weight in 16 bits.
        bias: [N], or `None`.
    """

    __slots__ = ("_by_loops", "_kept", "_product", "bias", "blocks", "weight")

    def __init__(self, product: PackedProduct, blocks: np.ndarray) -> None:
        self._product, self.weight, self.bias, self.blocks = product, product.weight, product.bias, blocks
        self._by_loops = hasattr(product.weight, BLOCKS)
        self._kept = product.weight.detach()  # the same memory, whatever becomes of the parameter

    @classmethod
    def of(cls, product: Any) -> FewBlocks | None:
        """Of a packed layer's product; `None` where a loop cannot read its weight."""
        blocks = blocks_of(product.weight) if isinstance(product, PackedProduct) else None
        return None if blocks is None else cls(product, blocks)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """[1, T, N] of [1, T, K]."""
        if self._by_loops:
            return self._product(states)
        tokens, (lines, size) = states.shape[1], self.weight.shape
        if not (tokens and MULTIPLY_BLOCKS.ready and are_faster(tokens, lines, size, in_blocks=True)):
            return self._product(states)
        return multiplied_by_blocks(states, self.blocks, lines, self.bias)


def multiplied(states: torch.Tensor, weight: np.ndarray, lines: int) -> torch.Tensor:
    """[1, T, N] products of [1, T, K] states with a flat weight."""
    tokens = states.shape[1]
    found = torch.empty(1, tokens, lines, dtype=torch.float32, device="cpu")
    threads = threads_of(tokens * len(weight), lines)
    MULTIPLY(FORK, threads, counters(), states.numpy().reshape(-1), tokens, weight, found.numpy().reshape(-1))
    return found


def are_faster(tokens: int, lines: int, size: int, in_blocks: bool = False) -> bool:
    """Whether the loops are faster than PyTorch for so many tokens and a weight [lines, size].

    Args:
        in_blocks: and bfloat16; else plain and float32.
    """
    if tokens > TOKENS[-1]:
        return False
    return _comparison(lines, size, in_blocks, torch.get_num_threads())[bisect_left(TOKENS, tokens)]


@lru_cache(maxsize=256)
def _comparison(lines: int, size: int, in_blocks: bool, threads: int) -> list[bool]:
    """The same for each of `TOKENS`, by their times; for those of which none was taken, as for the number before."""
    lines, gain = min(lines, max(UNIT, ELEMENTS // size)), BLOCKS_GAIN if in_blocks else GAIN
    own, other, like = (_packed_pair if in_blocks else _plain_pair)(lines, size)
    found, end = list[bool](), time.perf_counter() + SECONDS
    for tokens in TOKENS:
        times = _seconds(own, other, like.new_ones(1, tokens, size), end)
        if times is None:
            break
        found.append(times[0] < gain * times[1])
    return found + [bool(found) and found[-1]] * (len(TOKENS) - len(found))


def _plain_pair(lines: int, size: int) -> Pair:
    """By the loops and by PyTorch, products with some weights; and a tensor of their dtype."""
    weights = _weights(lines, size, torch.float32)
    numbers = [weight.numpy().reshape(-1) for weight in weights]
    own = [partial(multiplied, weight=each, lines=lines) for each in numbers]
    return own, [partial(linear, weight=weight) for weight in weights], weights[0]


def _packed_pair(lines: int, size: int) -> Pair:
    weights = _weights(-(-lines // UNIT) * UNIT, size, torch.bfloat16)
    blocks = [bits_of(weight) for weight in weights]  # in whatever order, they are ones
    own = [partial(multiplied_by_blocks, blocks=each, lines=lines) for each in blocks]
    return own, [PackedProduct(packed(weight[:lines]), None) for weight in weights], weights[0]


def _weights(lines: int, size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Some of this shape."""
    number = min(-(-CACHED // (lines * size * dtype.itemsize)), MOST)
    return [torch.ones(lines, size, dtype=dtype, device="cpu") for _ in range(number)]


def _seconds(
    own: Sequence[Compute], other: Sequence[Compute], states: torch.Tensor, end: float
) -> tuple[float, float] | None:
    """The shortest times of both, in turn; the first round does not count. `None` where they are not there by `end`."""
    times: tuple[list[float], list[float]] = [], []
    for _ in range(1 + ROUNDS):
        for products, taken in zip((own, other), times, strict=True):
            begin = time.perf_counter()
            for product in products:
                product(states)
                if time.perf_counter() > end:
                    return None
            taken.append(time.perf_counter() - begin)
    return min(times[0][1:]), min(times[1][1:])
