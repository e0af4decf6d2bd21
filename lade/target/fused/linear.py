"""Linear layers of few tokens, by the loops of `lade.target.fused.products` where these are faster on this machine."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import linear

from lade.base.threads import FORK, counters, threads_for
from lade.target.fused.products import MULTIPLY, PER_OPERATION, UNIT

TOKENS = 1, 2, 4, 8, 16, 32, 64  # whose times are compared, each for all numbers up to it; for more the loops are none
ELEMENTS = 1 << 19  # of the largest weight whose times are compared; of a larger one the first lines stand for all
ROUNDS = 3
GAIN = 0.95  # of PyTorch's time, that the loops must keep below


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


def multiplied(states: torch.Tensor, weight: np.ndarray, lines: int) -> torch.Tensor:
    """[1, T, N] products of [1, T, K] states with a flat weight."""
    tokens = states.shape[1]
    found = torch.empty(1, tokens, lines, dtype=torch.float32, device="cpu")
    threads = min(threads_for(tokens * len(weight) // PER_OPERATION), -(-lines // UNIT))
    MULTIPLY(FORK, threads, counters(), states.numpy().reshape(-1), tokens, weight, found.numpy().reshape(-1))
    return found


def are_faster(tokens: int, lines: int, size: int) -> bool:
    """Whether the loops are faster than PyTorch for so many tokens and a weight [lines, size]."""
    if tokens > TOKENS[-1]:
        return False
    return _comparison(lines, size, torch.get_num_threads())[bisect_left(TOKENS, tokens)]


@lru_cache(maxsize=256)
def _comparison(lines: int, size: int, threads: int) -> list[bool]:
    """The same for each of `TOKENS`, by their times."""
    lines = min(lines, max(UNIT, ELEMENTS // size))
    weight = torch.ones(lines, size, dtype=torch.float32, device="cpu")
    numbers, found = weight.numpy().reshape(-1), []
    for tokens in TOKENS:
        states = weight.new_ones(1, tokens, size)
        own, other = _seconds(partial(multiplied, states, numbers, lines), partial(linear, states, weight))
        found.append(own < GAIN * other)
    return found


def _seconds(*functions: Callable[[], Any]) -> list[float]:
    """The shortest time of each, in turn; the first round counts for none."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(1 + ROUNDS):
        for function, own in zip(functions, times, strict=True):
            begin = time.perf_counter()
            function()
            own.append(time.perf_counter() - begin)
    return [min(own[1:]) for own in times]
