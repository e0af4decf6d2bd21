"""What a draft that was drawn at random must say of itself, so that verification can keep the model's distribution.

Knows no model and no tree. V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch


class Rule(Protocol):
    """How candidates drawn from a draft's distribution are accepted (`lade.core.verify`)."""

    def judge(
        self, target: torch.Tensor, draft: torch.Tensor, drawn: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """How likely each candidate is to be taken, and what is left for the case that none is.

        Args:
            target: [M, V] distributions of the model's next token, after processors and warpers.
            draft: [M, V] distributions that the candidates were drawn from.
            drawn: [M, k] candidates in the order in which they were drawn; -1 where there is none.

        Returns:
            [M, k] probabilities of taking a candidate where those before it were not taken; [M, V] distributions of
            the token that comes where none is.
        """
        ...


@dataclass(frozen=True, slots=True)
class Proposals:
    """Where a draft's tokens were drawn from.

    Attributes:
        rule: how they are accepted.
        drawn: node -> the tokens drawn after it, in order; one that was drawn twice stands there twice.
        laws: node -> [V] the distribution that they were drawn from. A node that is in neither has no children.
    """

    rule: Rule
    drawn: dict[int, Sequence[int]] = field(default_factory=dict)
    laws: dict[int, torch.Tensor] = field(default_factory=dict)
