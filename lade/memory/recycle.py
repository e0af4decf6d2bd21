"""Recycled predictions: the model's own top-k next tokens, stored by the last 4, 3, 2 and 1 tokens.

Every computed node gives a prediction, rejected ones too (Token Recycling, arXiv 2408.08696, which uses one token of
context). A context of several tokens keeps its newest prediction; one token occurs in many places, so its prediction is
a moving average. Pure Python; knows no tree and no model.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

from lade.config.settings import CAPACITY

LENGTHS = (4, 3, 2, 1)  # tokens of context, longest first
CONTEXT = LENGTHS[0]
NOTHING = -1  # in a context, before the text's first token
TOP = 8  # predictions kept per context, and children weighed per node

Context = tuple[int, int, int, int]  # the last tokens, the most recent one last
Entry = tuple[list[int], list[float]]  # tokens, their probabilities, likeliest first; immutable, contexts share it
Average = tuple[list[int], list[float], int]  # the same, and the number of predictions averaged


@dataclass(frozen=True, slots=True)
class RecyclingPolicy:
    """How predictions are averaged. Chosen for the fewest steps with stories3M on the first 16 story prompts.

    Attributes:
        newest: least weight of the newest prediction in a moving average.
    """

    newest: float = 0.3


RECYCLING = RecyclingPolicy()


class PredictionTable:
    """Top-k predictions by context, in two generations per length of context: new predictions go into the young one.

    When the young one is full it replaces the old one, whose contexts are dropped unless they were learned again.

    Args:
        top: k, tokens kept per context.
        capacity: contexts kept per length, at least 1; one step may exceed it until the next swap. The half that was
            learned last is always kept.
    """

    def __init__(self, top: int, capacity: int = CAPACITY) -> None:
        self.top = top
        self.capacity = capacity
        self.young: list[dict[tuple[int, ...], Any]] = [{} for _ in LENGTHS]
        self.old: list[dict[tuple[int, ...], Any]] = [{} for _ in LENGTHS]

    def learn(self, context: Context, entry: Entry) -> None:
        """Store the prediction that follows a context."""
        four, three, two, one = self.young
        four[context] = three[context[1:]] = two[context[2:]] = entry
        key = context[3:]
        old = one.get(key) or self.old[3].get(key)
        one[key] = (*entry, 1) if old is None else self._averaged(old, entry)

    def _averaged(self, old: Average, new: Entry) -> Average:
        share = max(RECYCLING.newest, 1 / (old[2] + 1))
        kept = 1 - share
        mixed = dict(zip(old[0], [probability * kept for probability in old[1]], strict=True))
        for token, probability in zip(*new, strict=True):
            mixed[token] = mixed.get(token, 0.0) + share * probability
        best = sorted(mixed, key=mixed.__getitem__, reverse=True)[: self.top]
        return best, [mixed[token] for token in best], old[2] + 1

    def forget(self) -> None:
        """Drop the old generation where the young one is full; call it between steps."""
        for length, young in enumerate(self.young):
            if 2 * len(young) >= self.capacity:
                self.old[length], self.young[length] = young, {}

    def resize(self, capacity: int) -> None:
        """Change the capacity; the oldest contexts beyond it are dropped at once."""
        self.capacity = capacity
        self.forget()
        for old, young in zip(self.old, self.young, strict=True):
            for key in list(islice(old, max(0, len(old) + len(young) - capacity))):
                del old[key]

    def __len__(self) -> int:
        return sum(map(len, self.young)) + sum(map(len, self.old))
