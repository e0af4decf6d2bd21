"""How many tokens the next forward carries: as many as bring the most accepted tokens per second, or just the root.

A tree of T nodes is expected to bring E(T) = 1 + sum of its path probabilities, and costs c(T) steps of one token; the
best T maximises E(T) / c(T), but for a little that is given up for what wider trees teach. Both sides are measured:
costs by `StepCost`, and whether the probabilities hold in this text by a Bayesian filter, which turns within a few
steps. It judges drafts that were not sent too, so what was given up comes back. Where drafts are given up again and
again, most steps do not even look for any. Knows numbers only: no tree, no tokens, no model and no clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, zip_longest
from typing import Protocol

from lade.pace.knots import KNOTS

GAIN = 1.03  # what a tree must promise to be tried at all
STAY = 1.02  # what another size must promise over the last one, just the root included
LESSON = 0.02  # tokens that a node brings to later steps, since drafts are made of what was predicted after nodes
TRUSTED = 0.8  # belief from which on lessons are paid for
TUITION = 0.03  # share of the speed that a step may give up for lessons
BASELINE = 128  # steps after which one token alone is timed again: all costs are relative to it
COLD = 2  # steps at the beginning of a call that tell nothing of costs: caches are cold, buffers grow
FIRST = 3  # steps of a new model behind them that carry one token, to know what that costs
ROOM = 8  # nodes grown at least where drafts are looked for, so that a tree can come back
PATIENCE = 16  # looks in a row that found no draft worth its cost, before most are left out
AGAIN = 4  # looks that follow one at a token which came before, of which nothing is known
LOOKING, LONGEST = 0.005, 16  # share of the time that looks may take then, and the most steps between two of them
START = 0.95  # belief that probabilities hold in this text, before anything was seen
TURN, AFTER = 0.01, 0.4  # how likely a token begins another kind of text, and the belief that they hold in that
SURE = 0.98  # no draft is expected more than this
CHANCE = 0.02  # how likely a draft is chosen where they do not hold


class Cost(Protocol):
    """What the controller asks of `lade.pace.cost.StepCost`."""

    def table(self, limit: int, context: int, rows: int) -> Sequence[float]: ...

    def known(self, tokens: int, context: int, rows: int) -> bool: ...


class Controller:
    """Chooses the tree's size before every step of one call.

    Args:
        cost: what steps cost on this machine; shared by calls.
        limit: the most nodes of a row's tree, the root included.

    Attributes:
        decisions: how often which reason decided.
        rests: whether this step does not look for drafts, because they were worth nothing lately.
    """

    def __init__(self, cost: Cost, limit: int) -> None:
        self.cost, self.limit = cost, limit
        self.decisions: Counter[str] = Counter()
        self.rests = False
        self._steps = 0
        self._last = limit
        self._saw_beyond = False  # whether the last tree was larger than what was chosen of it
        self._holds = START
        self._refused = 0  # looks in a row without a draft worth its cost
        self._rest = 0  # steps from here on that look for none
        self._looking = 0.0

    def room(self, context: int, rows: int, looking: float) -> int:
        """Nodes per row worth growing in the next step, the root included; where it is just that, it is the choice too.

        What was chosen last, and every other time one size more.

        Args:
            context: tokens before them.
            looking: what looking for drafts takes, over what a step of one token takes without.
        """
        self._steps += 1
        self._looking = looking
        if self._left_out(context, rows):
            return 1
        wanted = max(self._last + (not self._saw_beyond), ROOM)
        return min(self.limit, next((size for size in KNOTS if size >= wanted), self.limit))

    @property
    def fruitless(self) -> bool:
        """Whether the last looks found nothing worth its cost, so that most steps look for no drafts."""
        return self._refused >= PATIENCE

    def choose(self, rows: Sequence[Sequence[float]], context: int, repeats: bool = False) -> int:
        """Nodes per row of the next forward, at least 1.

        Args:
            rows: path probabilities of each row's nodes, the root's 1 first; the last nodes are those to leave out.
            context: tokens before them.
            repeats: whether the last token of a row stood in its text before, so that a draft could be known. Where
                belief is low, chance is the likelier reason.
        """
        longest = max(map(len, rows))
        if longest == 1:
            if repeats and self._holds > TRUSTED:  # what followed it may not have been learned: the next steps do
                self._refused = min(self._refused, PATIENCE - AGAIN)
            return self._fruitless("nothing to draft")
        nodes = self._weigh(rows, longest, self.cost.table(self.limit, context, len(rows)))
        self._saw_beyond = nodes < longest
        return nodes

    def _weigh(self, rows: Sequence[Sequence[float]], longest: int, costs: Sequence[float]) -> int:
        # Of sizes between the knots little is known: on a CPU 6 tokens may cost more than 8.
        gains = self._gains(rows)
        speeds = {nodes: gains[nodes - 1] / costs[nodes] for nodes in (*KNOTS[: bisect_left(KNOTS, longest)], longest)}
        fastest = max(speeds.values())
        if fastest < (GAIN if self._last == 1 else GAIN / STAY):
            return self._fruitless("drafts cost more than they bring")
        self._refused = 0
        lesson = LESSON * (self._holds > TRUSTED)
        worth = {
            nodes: speed + lesson * nodes / costs[nodes]
            for nodes, speed in speeds.items()
            if speed >= (1 - TUITION) * fastest
        }
        best = max(worth, key=worth.__getitem__)
        if best != self._last and worth[best] < STAY * worth.get(self._last, 0.0):
            return self._decide("as before", self._last)
        return self._decide("limit reached" if best == self.limit else "most tokens per second", best)

    def _fruitless(self, reason: str) -> int:
        """One token alone: this look found no draft worth its cost. After many of them most steps look for none."""
        self._refused += 1
        if self.fruitless:
            self._rest = min(int(self._looking / LOOKING), LONGEST)
        return self._decide(reason, 1)

    def learn(self, expected: float, came: float) -> None:
        """One place of the text where drafts were at hand.

        Args:
            expected: probability that one of them is the model's choice.
            came: the share in it of the one that was; 0 where none was.
        """
        right = self._holds * (came or 1 - min(expected, SURE))
        wrong = (1 - self._holds) * (CHANCE if came else 1.0)
        if came and self._holds < TRUSTED:  # they may hold again: the next steps show
            self._rest, self._refused = 0, min(self._refused, PATIENCE // 2)
        self._holds = _next_token(right / (right + wrong))

    def _left_out(self, context: int, rows: int) -> bool:
        """Whether this step carries one token without a look at drafts; the last choice stands."""
        self.rests = self._rest > 0
        if self.rests:
            self._rest -= 1
            self._holds = _next_token(self._holds)
            self.decisions["drafts not looked for"] += 1
        elif self._due(context, rows):
            self.decisions["baseline timed"] += 1
        else:
            return False
        return True

    def _due(self, context: int, rows: int) -> bool:
        if self._last == 1:
            return False
        new = COLD < self._steps <= COLD + FIRST and not self.cost.known(rows, context, rows)
        return new or self._steps % BASELINE == 0

    def _gains(self, rows: Sequence[Sequence[float]]) -> list[float]:
        """Expected tokens per row and step by nodes per row, from the root alone on."""
        masses = rows[0] if len(rows) == 1 else [sum(nodes) for nodes in zip_longest(*rows, fillvalue=0.0)]
        share = self._holds / len(rows)
        return list(accumulate((share * mass for mass in masses[1:]), initial=1.0))

    def _decide(self, reason: str, nodes: int) -> int:
        self.decisions[reason] += 1
        self._last = nodes
        return nodes


def _next_token(holds: float) -> float:
    """The belief one token later, which may begin another kind of text."""
    return (1 - TURN) * holds + TURN * AFTER
