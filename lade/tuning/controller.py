"""How many tokens the next forward carries: as many as bring the most accepted tokens per second, or just the root.

A tree of T nodes is expected to bring E(T) = 1 + sum of its path probabilities, and costs c(T) steps of one token; the
best T maximises E(T) / c(T). Both sides are measured: costs by `StepCost`, probabilities by how often they came true.
Knows numbers only: no tree, no tokens, no model and no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

GAIN = 1.03  # what a tree must promise to be tried at all
STAY = 1.02  # what another size must promise over the last one
BASELINE = 128  # steps after which one token alone is timed again: all costs are relative to it
FIRST = 2  # steps of a new model that carry one token, to know what that costs
ROOM = 8  # nodes grown beyond twice the last choice, so that it can rise
MEMORY = 0.95  # share of the past in how often drafts come true
PRIOR = 2.0  # hits that were expected, and came, before anything was seen


class Cost(Protocol):
    """What the controller asks of `lade.tuning.cost.StepCost`."""

    def table(self, limit: int, context: int, rows: int) -> Sequence[float]: ...

    def known(self, tokens: int, context: int, rows: int) -> bool: ...


class Controller:
    """Chooses the tree's size before every step of one call.

    Args:
        cost: what steps cost on this machine; shared by calls.
        limit: the most nodes of a row's tree, the root included.

    Attributes:
        decisions: how often which reason decided.
    """

    def __init__(self, cost: Cost, limit: int) -> None:
        self.cost, self.limit = cost, limit
        self.decisions: Counter[str] = Counter()
        self._steps = 0
        self._last = limit
        self._expected = self._came = PRIOR

    @property
    def trust(self) -> float:
        """How many of the drafted tokens that were expected to be chosen were: 1 where probabilities are right."""
        return self._came / self._expected

    def room(self) -> int:
        """Nodes worth growing before `choose`."""
        return min(self.limit, 2 * self._last + ROOM)

    def choose(self, rows: Sequence[Sequence[float]], depths: Sequence[Sequence[int]], context: int) -> int:
        """Nodes per row of the next forward, at least 1.

        Args:
            rows: path probabilities of each row's nodes, the root's 1 first, none larger than the one before it.
            depths: of the same nodes.
            context: tokens before them.
        """
        self._steps += 1
        longest = max(map(len, rows))
        if longest == 1:
            return self._decide("nothing to draft", 1)
        if self._due(context, len(rows)):
            self.decisions["baseline timed"] += 1
            return 1  # the last choice stands
        costs = self.cost.table(longest, context, len(rows))
        speeds = [gain / cost for gain, cost in zip(self._gains(rows, depths, longest), costs[1:], strict=False)]
        best = max(range(longest), key=speeds.__getitem__) + 1
        if speeds[best - 1] < GAIN:
            return self._decide("drafts cost more than they bring", 1)
        if 1 < self._last <= longest and speeds[best - 1] < STAY * speeds[self._last - 1]:
            return self._decide("as before", self._last)
        return self._decide("limit reached" if best == self.limit else "most tokens per second", best)

    def learn(self, expected: float, came: int) -> None:
        """One place of the text where drafts were at hand.

        Args:
            expected: probability that one of them is the model's choice.
            came: 1 where one was, else 0.
        """
        self._expected = MEMORY * (self._expected - PRIOR) + expected + PRIOR
        self._came = MEMORY * (self._came - PRIOR) + came + PRIOR

    def _due(self, context: int, rows: int) -> bool:
        if self._last == 1:
            return False
        return self._steps % BASELINE == 0 or (self._steps <= FIRST + 1 and not self.cost.known(rows, context, rows))

    def _gains(self, rows: Sequence[Sequence[float]], depths: Sequence[Sequence[int]], longest: int) -> list[float]:
        """Expected tokens per row and step by nodes per row, from one node on."""
        trust = [min(1.0, self.trust) ** depth for depth in range(self.limit + 1)]
        added = [0.0] * longest
        for masses, levels in zip(rows, depths, strict=True):
            for index, (mass, depth) in enumerate(zip(masses, levels, strict=True)):
                added[index] += mass * trust[depth] / len(rows)
        return list(accumulate(added))

    def _decide(self, reason: str, nodes: int) -> int:
        self.decisions[reason] += 1
        self._last = nodes
        return nodes
