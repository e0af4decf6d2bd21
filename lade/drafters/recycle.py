"""Recycled predictions: what the model itself said would come next, remembered by the last 4, 3, 2 and 1 tokens.

Every node that a forward computed speaks, rejected ones too (Token Recycling, arXiv 2408.08696, keeps one token of
context). Bounded: the context that was seen longest ago is forgotten first. Pure Python; knows no tree and no model.
"""

from __future__ import annotations

from collections.abc import Sequence

LENGTHS = (4, 3, 2, 1)  # tokens of context, longest first
MIXED = 1  # contexts this short are seen in many places: their predictions are averaged, longer ones replaced
MIXING = 0.3  # share of the newest prediction in an average
CAPACITY = 100_000  # contexts remembered per length

Entry = tuple[list[int], list[float], int]  # tokens, their probabilities, how often the context was seen


class PredictionTable:
    """Top-k predictions by context.

    Args:
        top: k, tokens kept per context.
        capacity: contexts kept per length.
    """

    def __init__(self, top: int, capacity: int = CAPACITY) -> None:
        self.top = top
        self.capacity = capacity
        self.tables: dict[int, dict[tuple[int, ...], Entry]] = {length: {} for length in LENGTHS}

    def learn(self, context: tuple[int, ...], tokens: Sequence[int], probabilities: Sequence[float]) -> None:
        """Remember what follows a context, given with its most recent tokens, most likely prediction first."""
        prediction = (list(tokens[: self.top]), list(probabilities[: self.top]))
        for length, table in self.tables.items():
            key = context[-length:]
            if len(key) < length:
                continue
            old = table.pop(key, None)
            if old is None:
                table[key] = (*prediction, 1)
                if len(table) > self.capacity:
                    del table[next(iter(table))]
            elif length > MIXED:
                table[key] = (*prediction, old[2] + 1)
            else:
                table[key] = self._mixed(old, prediction)

    def _mixed(self, old: Entry, new: tuple[list[int], list[float]]) -> Entry:
        share = max(MIXING, 1 / (old[2] + 1))
        mixed = {token: probability * (1 - share) for token, probability in zip(old[0], old[1], strict=True)}
        for token, probability in zip(*new, strict=True):
            mixed[token] = mixed.get(token, 0.0) + share * probability
        best = sorted(mixed, key=mixed.__getitem__, reverse=True)[: self.top]
        return best, [mixed[token] for token in best], old[2] + 1

    def lookup(self, context: tuple[int, ...]) -> list[Entry | None]:
        """What is known after a context, one entry per length of `LENGTHS`."""
        return [table.get(context[-length:]) for length, table in self.tables.items()]

    def __len__(self) -> int:
        return sum(map(len, self.tables.values()))
