"""OpenAI's penalties of tokens that an answer has already used, as a logits processor of transformers."""

from __future__ import annotations

import torch
from transformers import LogitsProcessor


class Penalties(LogitsProcessor):
    """Lowers the scores of the tokens of an answer: by `frequency` for each use, and by `presence` once.

    Args:
        prompt_length: tokens of the prompt, which do not count.
    """

    def __init__(self, prompt_length: int, frequency: float, presence: float) -> None:
        self.prompt_length, self.frequency, self.presence = prompt_length, frequency, presence

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """[1, V] scores from [1, P + emitted] ids."""
        tokens, counts = torch.unique(input_ids[0, self.prompt_length :], return_counts=True)
        lowered = scores.clone()
        lowered[0, tokens] -= self.frequency * counts + self.presence
        return lowered
