"""Recycled predictions: what the model itself said would come next, remembered by the last 4, 3, 2 and 1 tokens.

Every node that a forward computed speaks, rejected ones too (Token Recycling, arXiv 2408.08696, keeps one token of
context). Contexts of several tokens keep the newest prediction; one token is seen in many places, so what follows it is
a moving average. Pure Python; knows no tree and no model.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from lade.config.settings import CAPACITY

LENGTHS = (4, 3, 2, 1)  # tokens of context, longest first
CONTEXT = LENGTHS[0]
NOTHING = -1  # in a context: the text is not that long
TOP = 8  # predictions kept per context, and children weighed per node
MIXING = 0.3  # least share of the newest prediction in an average

Context = tuple[int, int, int, int]  # the last tokens, the most recent one last
Entry = tuple[list[int], list[float]]  # tokens, their probabilities, likeliest first; never changed, shared by contexts
Average = tuple[list[int], list[float], int]  # the same, and how many predictions it is made of


class PredictionTable:
    """Top-k predictions by context, bounded: of each length there is a young half, which learns, and an old one. When
    the young one is full it becomes the old one, and what that held is forgotten unless it was learned anew.

    Args:
        top: k, tokens kept per context.
        capacity: contexts kept per length, at least 1; until the next swap also what one step learned beyond it. The
            half of it that was learned last is always there.
    """

    def __init__(self, top: int, capacity: int = CAPACITY) -> None:
        self.top = top
        self.capacity = capacity
        self.young: list[dict[tuple[int, ...], Any]] = [{} for _ in LENGTHS]
        self.old: list[dict[tuple[int, ...], Any]] = [{} for _ in LENGTHS]

    def learn(self, context: Context, entry: Entry) -> None:
        """Remember what follows a context."""
        four, three, two, one = self.young
        four[context] = three[context[1:]] = two[context[2:]] = entry
        key = context[3:]
        old = one.get(key) or self.old[3].get(key)
        one[key] = (*entry, 1) if old is None else self._averaged(old, entry)

    def _averaged(self, old: Average, new: Entry) -> Average:
        share = max(MIXING, 1 / (old[2] + 1))
        kept = 1 - share
        mixed = dict(zip(old[0], [probability * kept for probability in old[1]], strict=True))
        for token, probability in zip(*new, strict=True):
            mixed[token] = mixed.get(token, 0.0) + share * probability
        best = sorted(mixed, key=mixed.__getitem__, reverse=True)[: self.top]
        return best, [mixed[token] for token in best], old[2] + 1

    def forget(self) -> None:
        """Make room: to be called once in a while, between steps."""
        for length, young in enumerate(self.young):
            if 2 * len(young) >= self.capacity:
                self.old[length], self.young[length] = young, {}

    def resize(self, capacity: int) -> None:
        """Another capacity, from now on; of more contexts than that, those that came first are forgotten at once."""
        self.capacity = capacity
        self.forget()
        for old, young in zip(self.old, self.young, strict=True):
            for key in list(islice(old, max(0, len(old) + len(young) - capacity))):
                del old[key]

    def __len__(self) -> int:
        return sum(map(len, self.young)) + sum(map(len, self.old))
