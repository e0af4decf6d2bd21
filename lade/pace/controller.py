"""How many tokens the next forward carries: as many as bring the most accepted tokens per second, or the root alone.

A tree of T nodes is expected to bring E(T) = 1 + holds × (sum of its path probabilities) tokens and costs c(T) steps of
one token. The best T maximises E(T) / c(T) plus an exploration bonus. Costs are measured (`StepCost`), and so is
`holds`, the belief that the probabilities hold in this text (`Belief`). It is updated by drafts that were not sent too,
so that speculation comes back. After fruitless looks most steps look for no drafts (`Rest`). Knows numbers only: no
tree, no tokens, no model and no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from lade.pace.belief import Belief
from lade.pace.policy import PACE, PacePolicy
from lade.pace.rest import Rest
from lade.pace.size import FRUITLESS, Size, expected_tokens


class Cost(Protocol):
    """What the controller asks of `lade.pace.cost.StepCost`."""

    def table(self, limit: int, context: int, rows: int) -> Sequence[float]: ...

    def known(self, tokens: int, context: int, rows: int) -> bool: ...


class Controller:
    """Chooses the tree's size before every step of one call.

    Args:
        cost: of steps on this machine; shared by calls.
        limit: the most nodes of a row's tree, the root included.

    Attributes:
        decisions: reason -> how often it decided.
        rests: whether this step looks for no drafts, after fruitless looks.
    """

    def __init__(self, cost: Cost, limit: int, policy: PacePolicy = PACE) -> None:
        self.cost, self.limit = cost, limit
        self.decisions: Counter[str] = Counter()
        self.rests = False
        self._timing = policy.timing
        self._size, self._rest, self._belief = Size(limit, policy.size), Rest(policy.rest), Belief(policy.belief)
        self._steps = 0
        self._overhead = 0.0

    def room(self, context: int, rows: int, overhead: float) -> int:
        """Nodes per row worth growing in the step that begins, the root included; if 1, `choose` is not to be asked.

        Args:
            context: tokens before them.
            overhead: time of a look for drafts, over that of a step of one token without.
        """
        self._steps += 1
        self._overhead = overhead
        self.rests = self._rest.step()
        if self.rests:
            self._belief.next_token()
            self.decisions["drafts not looked for"] += 1
        elif self._baseline_due(context, rows):
            self.decisions["baseline timed"] += 1
        else:
            return self._size.grown()
        return 1

    @property
    def fruitless(self) -> bool:
        """Whether the last looks found nothing worth its cost, so that most steps look for no drafts."""
        return self._rest.fruitless

    def choose(self, rows: Sequence[Sequence[float]], context: int, repeats: bool = False) -> int:
        """Nodes per row of the next forward, at least 1.

        Args:
            rows: path probabilities of each row's nodes, the root's 1 first, in the order in which they are kept.
            context: tokens before them.
            repeats: whether the last token of a row stands in its text before, so that a draft might be known. If the
                belief is low, chance is the likelier reason.
        """
        if max(map(len, rows)) == 1:
            if repeats and self._belief.trusted:
                self._rest.after_repeat()
            nodes, reason = self._size.choose_root()
        else:
            tokens = expected_tokens(rows, self._belief.holds)
            costs = self.cost.table(self.limit, context, len(rows))
            nodes, reason = self._size.choose(tokens, costs, explores=self._belief.trusted)
        if reason in FRUITLESS:
            self._rest.found_nothing(self._overhead)
        else:
            self._rest.found()
        self.decisions[reason] += 1
        return nodes

    def learn(self, expected: float, accepted: float) -> None:
        """One token of the text for which drafts were found, sent or not.

        Args:
            expected: probability that one of them is the model's choice.
            accepted: the share in it of the one that was; 0 if none was.
        """
        if accepted and not self._belief.trusted:
            self._rest.after_accepted()
        self._belief.observe(expected, accepted)

    def _baseline_due(self, context: int, rows: int) -> bool:
        """Whether this step carries one token to be timed; then the last choice stands."""
        timing = self._timing
        if self._size.last == 1:
            return False
        first = timing.warm_up < self._steps <= timing.warm_up + timing.first_baselines
        return (first and not self.cost.known(rows, context, rows)) or self._steps % timing.baseline_every == 0
