"""Draft lengths: a fixed number of tokens, or one that follows the acceptance rate or the draft's confidence.

One row per policy in `LENGTHS`. Each request has an object of its own. Knows no model and no tree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

THRESHOLD_STEP = 0.01  # by which the confidence threshold moves after a step
TARGET_ACCEPTANCE_RATE = 0.9  # the threshold moves towards it
DECAY = 0.5  # weight of the past in the moving average of the acceptance rate
INCREMENT, DECREMENT = 2, 1  # tokens more after a draft that was accepted whole, fewer after any other


class Length(Protocol):
    """How deep the drafts of one request go."""

    needs_confidence: bool

    def limit(self) -> int:
        """The most tokens on a path of the next draft."""
        ...

    def continues(self, confidence: float) -> bool:
        """Whether to draft another level after one whose likeliest token has this probability in the draft model."""
        ...

    def update(self, tokens: int, accepted: int) -> None:
        """Learn from a draft of this depth, of which so many tokens were accepted."""
        ...


@dataclass(slots=True)
class Fixed:
    """Always the same number of tokens."""

    tokens: int
    threshold: float
    needs_confidence: bool = False

    def limit(self) -> int:
        return self.tokens

    def continues(self, confidence: float) -> bool:
        return True

    def update(self, tokens: int, accepted: int) -> None:
        return None


@dataclass(slots=True)
class ByAcceptance:
    """Two tokens more after a draft that was accepted whole, else one fewer, from one to twice the given number."""

    tokens: int
    threshold: float
    needs_confidence: bool = False
    most: int = 0

    def __post_init__(self) -> None:
        self.most = 2 * self.tokens

    def limit(self) -> int:
        return self.tokens

    def continues(self, confidence: float) -> bool:
        return True

    def update(self, tokens: int, accepted: int) -> None:
        if tokens == self.tokens:  # else the draft was cut at the end of the text
            whole = accepted == tokens
            self.tokens = min(self.most, self.tokens + INCREMENT) if whole else max(1, self.tokens - DECREMENT)


@dataclass(slots=True)
class ByConfidence:
    """Up to the first token whose probability is below a threshold, as in Draft & Verify (arXiv 2309.08168).

    The threshold rises while the acceptance rate is below `TARGET_ACCEPTANCE_RATE`, and falls otherwise.
    """

    tokens: int
    threshold: float
    needs_confidence: bool = True
    acceptance_rate: float = TARGET_ACCEPTANCE_RATE

    def limit(self) -> int:
        return self.tokens

    def continues(self, confidence: float) -> bool:
        return confidence >= self.threshold

    def update(self, tokens: int, accepted: int) -> None:
        self.acceptance_rate = DECAY * self.acceptance_rate + (1 - DECAY) * accepted / tokens
        low = self.acceptance_rate < TARGET_ACCEPTANCE_RATE
        moved = self.threshold + (THRESHOLD_STEP if low else -THRESHOLD_STEP)
        self.threshold = min(1 - THRESHOLD_STEP, max(0.0, moved))


LENGTHS: dict[str, Callable[[int, float], Length]] = {
    "fixed": Fixed,
    "acceptance": ByAcceptance,
    "confidence": ByConfidence,
}
