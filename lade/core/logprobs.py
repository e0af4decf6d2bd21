"""Log probabilities of a text's tokens under the model, as it computes them: before any processor and temperature.

M rows of logits, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token of a text.

    Attributes:
        token: its id.
        logprob: natural logarithm of its probability after the tokens before it.
        top: the most likely ids there and their log probabilities, likeliest first.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(slots=True, eq=False)
class Logprobs:
    """The log probabilities of one request.

    Attributes:
        top: the most likely tokens noted at each place; 0 notes none.
        reads_prompt: whether those of the prompt are noted too.
        of_prompt: of the prompt's tokens but the first one, which has none.
        emitted: of the emitted tokens.
    """

    top: int
    reads_prompt: bool = False
    of_prompt: list[TokenLogprob] = field(default_factory=list)
    emitted: list[TokenLogprob] = field(default_factory=list)

    def read(self, logits: torch.Tensor, tokens: Sequence[int]) -> None:
        """Note M prompt tokens and the [M, V] logits before them."""
        self.of_prompt += logprobs_of(logits, tokens, self.top)

    def emit(self, logits: torch.Tensor, token: int) -> None:
        """Note an emitted token and the [1, V] logits before it."""
        self.emitted += logprobs_of(logits, [token], self.top)


def logprobs_of(logits: torch.Tensor, tokens: Sequence[int], top: int) -> list[TokenLogprob]:
    """The log probabilities of M tokens in [M, V] logits, with the `top` most likely ones beside each."""
    every = logits.float().log_softmax(-1)
    asked = torch.tensor(tokens, device=every.device)
    own = every.gather(1, asked[:, None])[:, 0].tolist()
    values, ids = every.topk(min(top, every.shape[-1]))
    rows = zip(tokens, own, ids.tolist(), values.tolist(), strict=True)
    return [TokenLogprob(token, value, list(zip(best, of, strict=True))) for token, value, best, of in rows]
