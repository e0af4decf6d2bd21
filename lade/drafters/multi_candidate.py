"""Choice of a draft model's candidates: the likeliest tokens, or tokens drawn from its distribution.

Knows logits, no model and no tree. M nodes, V vocabulary of the target, k candidates per node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from lade.core.proposals import Rule
from lade.core.topk import likeliest
from lade.core.verify import Candidates


@dataclass(frozen=True, slots=True)
class Chosen:
    """Candidates after M nodes.

    Attributes:
        tokens: M lists of at most k tokens, in the order of the draws, or the likeliest first.
        confidence: M probabilities of the likeliest of them; empty where it is not asked for.
        laws: [M, V] distributions that they were drawn from; `None` where they were not drawn.
    """

    tokens: list[list[int]]
    confidence: list[float]
    laws: torch.Tensor | None = None


class Chooser(Protocol):
    """Chooses candidates."""

    rule: Rule | None  # acceptance rule of drawn candidates; `None` where they are not drawn

    def choose(self, logits: torch.Tensor, width: int, confidence: bool) -> Chosen:
        """`width` candidates after each node of [M, V] logits, with their confidence where asked for."""
        ...


class Likeliest:
    """The likeliest tokens (one-hot proposals), for greedy decoding and for `likeliest=True`."""

    rule: Rule | None = None

    def choose(self, logits: torch.Tensor, width: int, confidence: bool) -> Chosen:
        width = min(width, logits.shape[-1])
        if width == 1 and not confidence:
            return Chosen([[token] for token in logits.argmax(-1).tolist()], [])
        tokens, probabilities = likeliest(logits.float(), width)
        return Chosen(tokens.tolist(), probabilities[:, 0].tolist() if confidence else [])


class Drawn:
    """Tokens drawn from the warped distribution of the draft model, with the device's default generator.

    Args:
        warpers: the call's processors that do not depend on the text.
        replacement: whether a token may be drawn twice after one node.
    """

    def __init__(self, warpers: Callable[[Any, torch.Tensor], torch.Tensor], replacement: bool) -> None:
        self.warpers = warpers
        self.replacement = replacement
        self.rule: Rule | None = Candidates(replacement)

    def choose(self, logits: torch.Tensor, width: int, confidence: bool) -> Chosen:
        scores = logits.to(torch.float32, copy=True)
        # Logits may be NaN: any distribution keeps the output correct, as long as it is a distribution.
        scores.masked_fill_(scores.isnan(), 0.0)
        laws = self.warpers(torch.zeros(len(scores), 1, dtype=torch.long, device=scores.device), scores).softmax(-1)
        tokens = self._draw(laws, width)
        sure = laws.gather(1, tokens.clamp(min=0)).max(-1).values.tolist() if confidence else []
        return Chosen([[token for token in row if token >= 0] for row in tokens.tolist()], sure, laws)

    def _draw(self, laws: torch.Tensor, width: int) -> torch.Tensor:
        """[M, k] tokens; -1 where no other token has a positive probability."""
        if self.replacement:
            return torch.multinomial(laws, width, replacement=True)
        # The k largest of p / noise (exponential) are k draws from p without replacement.
        ranked = (laws / torch.empty_like(laws).exponential_(1)).topk(min(width, laws.shape[-1]))
        return torch.where(ranked.values > 0, ranked.indices, -1)
