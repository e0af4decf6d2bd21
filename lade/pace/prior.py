"""The prior of a cost curve: what is assumed about the logarithms of costs before any step is timed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from lade.pace.knots import KNOTS

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class CurvePrior:
    """A Gaussian prior: the cost of a step is linear in its tokens, give or take.

    No record says what data these values were chosen on.

    Attributes:
        per_token: cost of one more token, over the fixed cost of a step.
        jump: standard deviation of the difference between width 1 and all wider ones.
        slope: standard deviation of the slope, as a multiple of the prior's own log cost.
        bend: standard deviation per doubling of the width of a random walk, which lets the curve bend anywhere.
    """

    per_token: float = 0.02
    jump: float = 0.15
    slope: float = 0.5
    bend: float = 0.06

    def log_cost(self, tokens: float, rows: float = 1.0, context: float = 1.0) -> float:
        """Mean of the logarithm of the cost of a step over that of one token per row; the same in all contexts."""
        return math.log((1 + self.per_token * tokens) / (1 + self.per_token * rows))

    def covariance(self) -> Array:
        """[knots, knots] covariance of the log costs, read-only. The first row and column, the level's, are 0."""
        return _covariance(self)

    def between(self, one: int, other: int) -> float:
        """Covariance of the log costs of two widths above 1."""
        slopes = self.slope**2 * self.log_cost(one) * self.log_cost(other)
        return self.jump**2 + slopes + self.bend**2 * math.log2(min(one, other))


@cache
def _covariance(prior: CurvePrior) -> Array:
    covariance: Array = np.zeros((len(KNOTS), len(KNOTS)))
    covariance[1:, 1:] = [[prior.between(one, other) for other in KNOTS[1:]] for one in KNOTS[1:]]
    covariance.flags.writeable = False
    return covariance


PRIOR = CurvePrior()

SERIAL = CurvePrior(per_token=0.9, slope=0.1)
"""Of a CPU that computes products token by token (`lade.facts.products`).

On an AMD EPYC with AVX2, in bfloat16, steps of 2, 4, 8, 16 and 32 tokens took 1.55, 2.69, 5.09, 9.95 and 18.84 times as
long as one of SmolLM2-135M, and 1.10, 1.52, 2.43, 4.51 and 8.84 times with 8M weights (`benchmarks/dtypes.py`).
"""
