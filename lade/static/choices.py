"""How a static step chooses a token after each of its nodes, without the host. N nodes, V vocabulary."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from lade.core.noise import Noise
from lade.memory.coupling import MEDIAN
from lade.static.inputs import StepInputs
from lade.static.slots import StaticSlots
from lade.static.step import likeliest_token


class Chooser(Protocol):
    """Chooses as plain decoding does."""

    def __call__(self, logits: torch.Tensor, inputs: StepInputs, slots: StaticSlots) -> torch.Tensor:
        """[N] tokens from [N, V] logits; -1 where a node has no distribution."""
        ...


class Greedy:
    """The most likely token; ties are broken in float32, as in plain decoding.

    Args:
        processors: of `purity.TEXT_BLIND`, applied to [N, V] scores; they get the [N, 1] slots in place of a text.
    """

    def __init__(self, processors: Any = ()) -> None:
        self.processors = processors

    def __call__(self, logits: torch.Tensor, inputs: StepInputs, slots: StaticSlots) -> torch.Tensor:
        return likeliest_token(_scores(logits, inputs, self.processors))


class NoiseRing:
    """Noise of the next emitted indices on the device (`lade.core.noise`); the host fills it between two steps.

    Args:
        indices: of each slot that it holds at once, K.

    Attributes:
        values: [K, slots + 1, V] noise of index i at i % K. Where nothing is filled in, no token is preferred.
    """

    def __init__(self, slots: StaticSlots, vocabulary: int, indices: int) -> None:
        self.values = torch.full((indices, slots.count + 1, vocabulary), MEDIAN, device=slots.lengths.device)
        self._filled: dict[int, int] = {}  # slot -> the index behind the last one in the ring

    def begin(self, slot: int) -> None:
        """Another request is in this slot."""
        if self._filled.pop(slot, None) is not None:
            self.values[:, slot] = MEDIAN

    def fill(self, noise: Noise, slot: int, row: int, emitted: int, left: int) -> None:
        """Copy the noise of a request's next indices.

        Args:
            row: of the noise.
            emitted: tokens so far.
            left: tokens that it may still emit.
        """
        indices, _, vocabulary = self.values.shape
        end = emitted + min(indices, left)
        for index in range(max(emitted, self._filled.get(slot, 0)), end):
            self.values[index % indices, slot] = noise.at(index, vocabulary)[row]
        self._filled[slot] = end


class Sampled:
    """Draws with the noise of the emitted index.

    Args:
        processors: as of `Greedy`.
        ring: of the step's slots, filled as far as a draft may reach.
        sampled: [slots + 1] bool, whether each slot's tokens are drawn, where others get the most likely one.
    """

    def __init__(self, processors: Any, ring: NoiseRing, sampled: torch.Tensor) -> None:
        self.processors, self.ring, self.sampled = processors, ring, sampled

    def __call__(self, logits: torch.Tensor, inputs: StepInputs, slots: StaticSlots) -> torch.Tensor:
        scores = _scores(logits, inputs, self.processors)
        drawn = self._drawn(scores.softmax(-1), inputs, slots)
        return torch.where(self.sampled[inputs.slots], drawn, likeliest_token(scores))

    def _drawn(self, probabilities: torch.Tensor, inputs: StepInputs, slots: StaticSlots) -> torch.Tensor:
        noise = self.ring.values
        index = (slots.emitted[inputs.slots] + inputs.orders.clamp(min=0)) % len(noise)
        values, tokens = (probabilities / noise[index, inputs.slots]).max(-1)
        distribution = ((probabilities >= 0) & (probabilities < torch.inf)).all(-1) & (probabilities.sum(-1) > 0)
        return torch.where((values > 0) | distribution, tokens, -1)


def _scores(logits: torch.Tensor, inputs: StepInputs, processors: Any) -> torch.Tensor:
    """[N, V] float32."""
    scores = logits.float()
    return processors(inputs.slots[:, None], scores) if processors else scores
