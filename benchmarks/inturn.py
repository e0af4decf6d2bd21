"""Two ways of computing the same logits, in turn in one process. Knows no model."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles

import torch

WARM_UP = 2  # rounds that are not counted

Compute = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Ratio:
    """Medians of rounds in milliseconds, the ratio of the first way's time over the second's, and its quartiles."""

    first_ms: float
    second_ms: float
    ratio: float
    low: float
    high: float
    same_bits: bool

    def told(self, first: str, second: str) -> str:
        """For people, with names for the ways."""
        return (
            f"{first} {self.first_ms:7.2f} ms  {second} {self.second_ms:7.2f} ms  "
            f"ratio {self.ratio:.2f} (quartiles {self.low:.2f} to {self.high:.2f})  "
            f"{'same bits' if self.same_bits else 'bits differ'}"
        )


@torch.inference_mode()
def in_turn(first: Compute, second: Compute, rounds: int) -> Ratio:
    """Compute both ways in each round; the order alternates."""
    taken: list[tuple[float, float]] = []
    same = True
    for number in range(WARM_UP + rounds):
        pair = (first, second) if number % 2 else (second, first)
        seconds, logits = zip(*map(_timed, pair), strict=True)
        same = same and torch.equal(*logits)
        taken.append(seconds if number % 2 else seconds[::-1])
    counted = taken[WARM_UP:]
    ratios = [one / other for one, other in counted]
    low, _, high = quantiles(ratios, n=4)
    one, other = (1e3 * median(side) for side in zip(*counted, strict=True))
    return Ratio(one, other, median(ratios), low, high, same)


def _timed(compute: Compute) -> tuple[float, torch.Tensor]:
    begun = time.perf_counter()
    logits = compute()
    return time.perf_counter() - begun, logits
