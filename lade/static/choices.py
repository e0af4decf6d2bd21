"""How a static step chooses a token after each of its nodes, without the host. N nodes, V vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from lade.core.noise import Noise
from lade.static.inputs import StepInputs
from lade.static.slots import StaticSlots
from lade.static.step import likeliest_token


class Chooser(Protocol):
    """Chooses as plain decoding does."""

    def __call__(self, logits: torch.Tensor, inputs: StepInputs, slots: StaticSlots) -> torch.Tensor:
        """[N] tokens from [N, V] logits; -1 where a node has no distribution."""
        ...


class Greedy:
    """The most likely token; ties are broken in float32, as in plain decoding."""

    def __call__(self, logits: torch.Tensor, inputs: StepInputs, slots: StaticSlots) -> torch.Tensor:
        return likeliest_token(logits)


class Sampled:
    """Draws with noise of the emitted index (`lade.core.noise`), which the host puts into a ring before the step.

    Args:
        processors: of `purity.TEXT_BLIND`, applied to [N, V] scores.
        depth: the largest of a draft.

    Attributes:
        ring: [K, slots + 1, V] noise of index i at i % K.
    """

    def __init__(self, processors: Any, slots: StaticSlots, vocabulary: int, depth: int) -> None:
        self.processors = processors
        device = slots.lengths.device
        self.ring = torch.ones(1 << depth.bit_length(), slots.count + 1, vocabulary, device=device)
        self._filled: dict[int, int] = {}  # slot -> the index behind the last one in the ring

    def begin(self, slot: int) -> None:
        """Another request is in this slot."""
        self._filled.pop(slot, None)

    def fill(self, noise: Noise, slots: Sequence[int], rows: Sequence[int], emitted: Sequence[int]) -> None:
        """Put the noise of the next indices into the ring, between two steps.

        Args:
            rows: of the noise, per slot.
            emitted: tokens so far, per slot.
        """
        for slot, row, first in zip(slots, rows, emitted, strict=True):
            for index in range(max(first, self._filled.get(slot, 0)), first + len(self.ring)):
                self.ring[index % len(self.ring), slot] = noise.at(index, self.ring.shape[2])[row]
            self._filled[slot] = first + len(self.ring)

    def __call__(self, logits: torch.Tensor, inputs: StepInputs, slots: StaticSlots) -> torch.Tensor:
        scores = logits.float()
        if self.processors:
            scores = self.processors(inputs.ids[:, None], scores)
        probabilities = scores.softmax(-1)
        index = (slots.emitted[inputs.slots] + inputs.orders.clamp(min=0)) % len(self.ring)
        values, tokens = (probabilities / self.ring[index, inputs.slots]).max(-1)
        distribution = ((probabilities >= 0) & (probabilities < torch.inf)).all(-1) & (probabilities.sum(-1) > 0)
        return torch.where((values > 0) | distribution, tokens, -1)
