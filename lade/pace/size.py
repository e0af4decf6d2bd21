"""Choice of a step's size by expected speed, with hysteresis and an exploration bonus. Knows numbers only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lade.pace.sharing import Sharing


@dataclass(frozen=True, slots=True)
class SizePolicy:
    """How sizes are compared. Speeds are relative to one token per step.

    With the same costs, trees a little wider than the fastest gained 2 to 3 % over a text of 192 tokens: that is what
    `bonus` and `exploration` are for. `start` was 1.03 while what a look takes counted as a cost of its tree; with that
    apart, 1.05 sends no more drafts where these are always wrong. No record says what data the others were chosen on.

    Attributes:
        start: speed that drafts must promise after a step of one token.
        hysteresis: factor by which another size, one token included, must be better than the last one.
        bonus: exploration bonus of a node, in tokens: drafts are made of what the model predicted after nodes.
        exploration: largest share of the speed given up for the bonus.
        least_grown: nodes that the tree of one row grows to at least, the root included, so that it can come back.
    """

    start: float = 1.05
    hysteresis: float = 1.02
    bonus: float = 0.02
    exploration: float = 0.03
    least_grown: int = 8


SIZE = SizePolicy()
NOTHING, WORTHLESS = "nothing to draft", "drafts cost more than they bring"


class Choice(NamedTuple):
    """Of a step's size.

    Attributes:
        size: tokens of all rows, roots included.
        reason: for the statistics.
        saved: time that the step is expected to save, in steps of one token per row; 0 for the roots alone.
    """

    size: int
    reason: str
    saved: float


class Size:
    """The sizes of one call's steps: the tokens of all rows together, roots included.

    Args:
        limit: the largest, per row.
        sharing: how the rows of a step share it.

    Attributes:
        last: the latest choice, per row.
    """

    def __init__(self, limit: int, sharing: Sharing, policy: SizePolicy = SIZE) -> None:
        self._limit, self._sharing, self._policy = limit, sharing, policy
        self.last: float = limit
        self._room = 0  # of the running step
        self._cut = False  # whether the last trees had room for more than the choice

    def choose_roots(self, rows: int) -> Choice:
        """One token per row, where no draft was found."""
        self.last = 1
        return Choice(rows, NOTHING, 0.0)

    def grown(self, rows: int) -> int:
        """Tokens worth growing: the last choice, and one size more if the last trees were not cut."""
        last = round(self.last * rows)
        wanted = max(last + (not self._cut), self._sharing.least(self._policy.least_grown, rows))
        limit = self._limit * rows
        self._room = min(limit, next((size for size in self._sharing.sizes(rows) if size >= wanted), limit))
        return self._room

    def choose(
        self, expected: Mapping[int, float], costs: Sequence[float], rows: int, explores: float, overhead: float
    ) -> Choice:
        """The next size: all roots, as `WORTHLESS`, where no draft is worth its cost.

        Sizes are knots and the whole trees. Costs between the knots are not known: with a 130M model in float32 on a
        CPU, 6 tokens cost more than 8 (1.85 and 1.66 times one token), and choosing knots only was 7 % faster.

        Args:
            expected: size -> expected tokens of text per row, ascending, the roots alone first.
            costs: of a step by tokens per row from 0 on, over those of one.
            explores: share of the rows in which the exploration bonus counts.
            overhead: what the look for drafts takes, over a step of one token per row: the step takes as much longer,
                whatever its size.
        """
        forwards = {size: _cost(costs, size / rows) for size in expected}
        steps = {size: (cost + overhead) / (1 + overhead) for size, cost in forwards.items()}
        size, reason = self._fastest(expected, steps, rows, explores)
        self.last, self._cut = size / rows, size < min(self._room, max(expected))
        return Choice(size, reason, expected[size] - forwards[size])

    def _fastest(
        self, expected: Mapping[int, float], costs: Mapping[int, float], rows: int, explores: float
    ) -> tuple[int, str]:
        policy = self._policy
        speeds = {size: tokens / costs[size] for size, tokens in expected.items()}
        fastest = max(speeds.values())
        if fastest < (policy.start if self.last == 1 else policy.start / policy.hysteresis):
            return rows, WORTHLESS
        bonus = policy.bonus * explores
        values = {
            size: speed + bonus * (size / rows) / costs[size]
            for size, speed in speeds.items()
            if speed >= (1 - policy.exploration) * fastest
        }
        best, last = max(values, key=values.__getitem__), round(self.last * rows)
        if best != last and values[best] < policy.hysteresis * values.get(last, 0.0):
            return last, "as before"
        return best, "limit reached" if best == self._limit * rows else "most tokens per second"


def _cost(costs: Sequence[float], width: float) -> float:
    """Linear between whole numbers of tokens per row."""
    low = int(width)
    return costs[low] if low == width else costs[low] + (width - low) * (costs[low + 1] - costs[low])
