"""What verification needs to know of a draft that was drawn at random: candidates and their distributions.

Knows no model and no tree. V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch


class Rule(Protocol):
    """An acceptance rule for candidates that were drawn from a distribution (`lade.core.verify`)."""

    def judge(
        self, target: torch.Tensor, draft: torch.Tensor, drawn: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Acceptance probabilities, and the distribution of the token where no candidate is accepted.

        Args:
            target: [M, V] probabilities of the model's next token, after logits processors.
            draft: [M, V] probabilities that the candidates were drawn from.
            drawn: [M, k] candidates in the order in which they were drawn; -1 where there is none.

        Returns:
            [M, k] probability of accepting a candidate, given that those before it are rejected; [M, V] residual
            distributions, given that all are rejected.
        """
        ...


@dataclass(frozen=True, slots=True)
class Proposals:
    """The candidates of a draft and the distributions that they were drawn from.

    Attributes:
        rule: accepts or rejects them.
        drawn: node -> the tokens drawn after it, in order, with repetitions.
        laws: node -> [V] the distribution that they were drawn from. A node in neither has no children.
    """

    rule: Rule
    drawn: dict[int, Sequence[int]] = field(default_factory=dict)
    laws: dict[int, torch.Tensor] = field(default_factory=dict)
