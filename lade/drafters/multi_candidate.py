"""How a draft model's candidates are chosen: the likeliest ones, or ones drawn from its distribution.

Knows scores, no model and no tree. M nodes, V vocabulary of the target, k candidates per node.
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
        tokens: M lists of at most k tokens, in the order in which they were drawn, or the likeliest first.
        confidence: M probabilities of the surest of them; empty where nobody asked.
        laws: [M, V] the distributions that they were drawn from; `None` where they were chosen with certainty.
    """

    tokens: list[list[int]]
    confidence: list[float]
    laws: torch.Tensor | None = None


class Chooser(Protocol):
    """Chooses candidates."""

    rule: Rule | None  # how they are accepted; `None` where they are certain

    def choose(self, logits: torch.Tensor, width: int, confidence: bool) -> Chosen:
        """`width` candidates after each node of [M, V] logits; `confidence` tells whether theirs is wanted."""
        ...


class Likeliest:
    """The likeliest tokens, for greedy decoding and for drafts that are certain."""

    rule: Rule | None = None

    def choose(self, logits: torch.Tensor, width: int, confidence: bool) -> Chosen:
        width = min(width, logits.shape[-1])
        if width == 1 and not confidence:
            return Chosen([[token] for token in logits.argmax(-1).tolist()], [])
        tokens, probabilities = likeliest(logits.float(), width)
        return Chosen(tokens.tolist(), probabilities[:, 0].tolist() if confidence else [])


class Drawn:
    """Tokens drawn from the draft's distribution, with the device's default generator, behind the call's warpers.

    Args:
        warpers: processors that do not look at the text.
        replacement: whether a token may be drawn twice after one node.
    """

    def __init__(self, warpers: Callable[[Any, torch.Tensor], torch.Tensor], replacement: bool) -> None:
        self.warpers = warpers
        self.replacement = replacement
        self.rule: Rule | None = Candidates(replacement)

    def choose(self, logits: torch.Tensor, width: int, confidence: bool) -> Chosen:
        scores = logits.to(torch.float32, copy=True)
        # Behind a token that is not finite a model says NaN: any law will do there, as long as it is one.
        scores.masked_fill_(scores.isnan(), 0.0)
        laws = self.warpers(torch.zeros(len(scores), 1, dtype=torch.long, device=scores.device), scores).softmax(-1)
        tokens = self._draw(laws, width)
        sure = laws.gather(1, tokens.clamp(min=0)).max(-1).values.tolist() if confidence else []
        return Chosen([[token for token in row if token >= 0] for row in tokens.tolist()], sure, laws)

    def _draw(self, laws: torch.Tensor, width: int) -> torch.Tensor:
        """[M, k] tokens; -1 where there is no other one to draw."""
        if self.replacement:
            return torch.multinomial(laws, width, replacement=True)
        # The largest of p / noise is a draw from p, the next one a draw from what is left of it, and so on.
        ranked = (laws / torch.empty_like(laws).exponential_(1)).topk(min(width, laws.shape[-1]))
        return torch.where(ranked.values > 0, ranked.indices, -1)
