"""Recent predictions without their contexts: a cache language model over what the model found likely in recent steps.

Words of a text come in clusters (cache language model, Kuhn and De Mori 1990), and what a wrong branch of a draft tree
predicts often comes a few tokens later. So these tokens fill a tree where no context is known yet. Pure Python; knows
no tree and no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lade.memory.recycle import Entry


@dataclass(frozen=True, slots=True)
class RecencyPolicy:
    """How recent predictions are weighed. Chosen with SmolLM2-135M-Instruct on prompts of seven kinds.

    Attributes:
        decay: of a token's mass per step.
        kept: tokens that are remembered from step to step.
        offered: tokens that are predicted, at most.
    """

    decay: float = 0.7
    kept: int = 64
    offered: int = 16


RECENCY = RecencyPolicy()


class RecentPredictions:
    """Tokens by their probability in the predictions of recent steps.

    Attributes:
        likeliest: tokens and their probabilities, likeliest first; not to be changed.
    """

    def __init__(self) -> None:
        self._masses: dict[int, float] = {}
        self._total = 0.0  # mass of all predictions, what they give to unknown tokens included
        self.likeliest: Entry = ([], [])

    def learn(self, entries: Sequence[Entry]) -> None:
        """Take in all predictions of one step."""
        if not entries:
            return
        masses = {token: RECENCY.decay * mass for token, mass in self._masses.items()}
        for tokens, probabilities in entries:
            for token, probability in zip(tokens, probabilities, strict=True):
                masses[token] = masses.get(token, 0.0) + probability
        self._total = RECENCY.decay * self._total + len(entries)
        order = sorted(masses, key=masses.__getitem__, reverse=True)
        best = order[: RECENCY.offered]
        self.likeliest = best, [masses[token] / self._total for token in best]
        self._masses = {token: masses[token] for token in order[: RECENCY.kept]}
