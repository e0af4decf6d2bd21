"""The weights of the mixture's stages (`lade.memory.mixture`) that one pool has learned."""

from __future__ import annotations

import numpy as np

from lade.memory.stages import BUCKETS, DEPTHS, FIRSTS, STAGES

_PRIORS = [weight for stage in STAGES for weight in stage.priors * DEPTHS]
_BEGINNING = np.array(_PRIORS + [stage.strength for stage in STAGES for _ in range(stage.buckets)])


class Calibration:
    """Weights per stage and bucket, at first the priors.

    Attributes:
        numbers: [2 BUCKETS] float64: the weights, then the observations behind each, those that the prior counts for
            included.
    """

    def __init__(self) -> None:
        self.numbers = _BEGINNING.copy()

    @property
    def weights(self) -> list[np.ndarray]:
        """Of each stage, by bucket; views."""
        return np.split(self.numbers[:BUCKETS], FIRSTS[1:-1])

    @property
    def seen(self) -> list[np.ndarray]:
        """Observations behind each weight; views."""
        return np.split(self.numbers[BUCKETS:], FIRSTS[1:-1])
