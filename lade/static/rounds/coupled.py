"""Predictions of the device coupled with the noise of the tokens to come, as the host does (`lade.memory.coupling`)."""

from __future__ import annotations

import torch

from lade.memory.coupling import MEDIAN, TINY
from lade.static.choices import NoiseRing
from lade.static.slots import StaticSlots


class Coupled:
    """For requests in the slots of a step. M contexts, k tokens of a prediction.

    Args:
        ring: holds the noise of their next tokens.
    """

    def __init__(self, slots: StaticSlots, ring: NoiseRing) -> None:
        self._slots, self._ring = slots, ring

    def __call__(self, slots: torch.Tensor, depth: int, tokens: torch.Tensor, masses: torch.Tensor) -> torch.Tensor:
        """[M, k] probabilities that tokens are chosen, given the noise.

        Args:
            slots: [M] of the contexts.
            depth: of the nodes whose children the tokens are.
            tokens, masses: [M, k] predictions, and their probabilities before the noise is known.
        """
        noise = self._ring.values
        index = (self._slots.emitted[slots] + depth) % len(noise)
        drawn = noise[index[:, None], slots[:, None], tokens.clamp(0, noise.shape[2] - 1)]
        rest = (1 - masses.sum(1, keepdim=True)).clamp(min=0) / MEDIAN
        weights = masses / drawn.clamp(min=TINY)
        return weights / (weights.sum(1, keepdim=True) + rest)
