"""How many tokens the next forward carries: as many as bring the most accepted tokens per second, or the roots alone.

A step of R rows and T tokens is expected to bring E(T) = R + sum of holds × path probability over all nodes but the
roots, and costs c(T) steps of one token per row. The best T maximises E(T) / c(T) plus an exploration bonus; which
nodes the T are is for the way in which rows share the step to say (`Sharing`). Costs are measured (`StepCost`), and so
is `holds`, the belief that the probabilities hold in a row's text (`Belief`). It is updated by drafts that were not
sent too, so that speculation comes back. A look for drafts takes time, too; where they save less, most steps do not
look (`Rest`). Knows numbers only: no tree, no tokens, no model and no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from lade.pace.belief import Belief
from lade.pace.policy import PACE, PacePolicy
from lade.pace.rest import Rest
from lade.pace.sharing import PADDED, Row, Sharing
from lade.pace.size import Choice, Size
from lade.pace.timing import Baseline


class Cost(Protocol):
    """What the controller asks of `lade.pace.cost.StepCost`."""

    def table(self, limit: int, context: int, rows: int) -> Sequence[float]: ...

    def known(self, tokens: int, context: int, rows: int) -> bool: ...


class Controller:
    """Chooses the size before every step of one call. Rows may join and leave between steps.

    Args:
        cost: of steps on this machine; shared by calls.
        limit: the most nodes of a row's tree, the root included.
        sharing: how the rows of a step share it.

    Attributes:
        decisions: reason -> how often it decided.
        rests: whether this step looks for no drafts, after fruitless looks.
    """

    def __init__(self, cost: Cost, limit: int, policy: PacePolicy = PACE, sharing: Sharing = PADDED) -> None:
        self.cost, self.limit, self.sharing = cost, limit, sharing
        self.decisions: Counter[str] = Counter()
        self.rests = False
        self._size, self._rest = Size(limit, sharing, policy.size), Rest(policy.rest)
        self._baseline = Baseline(policy.timing)
        self._rows, self._overhead = 1, 0.0  # of the running step

    def room(self, context: int, beliefs: Sequence[Belief], overhead: float) -> int:
        """Tokens worth growing in the step that begins, roots included; if roots only, `choose` is not to be asked.

        Args:
            context: tokens before them.
            beliefs: one per row.
            overhead: time of a look for drafts, over that of a step of one token per row without (`Overhead`).
        """
        rows = self._rows = len(beliefs)
        self._overhead = overhead
        self._baseline.begin()
        self.rests = self._rest.step()
        if self.rests:
            for belief in beliefs:
                belief.next_token()
            self.decisions["drafts not looked for"] += 1
        elif self._size.last != 1 and self._baseline.due(rows, self.cost.known(rows, context, rows)):
            self.decisions["baseline timed"] += 1
        else:
            return self._size.grown(rows)
        return rows

    def repeat(self) -> None:
        """The step was not timed (`Baseline.repeat`)."""
        self._baseline.repeat()

    def refer(self) -> None:
        """A request starts that has a reference, a text that its own may repeat."""
        self._rest.after_reference(1 / self._rows)

    @property
    def fruitless(self) -> bool:
        """Whether the last looks saved less than they took, so that most steps look for no drafts."""
        return self._rest.fruitless

    def choose(self, rows: Sequence[Row], context: int) -> list[int]:
        """Nodes of each row in the next forward, at least 1.

        Args:
            context: tokens before them.
        """
        if max(len(row.masses) for row in rows) == 1:
            repeating = sum(row.repeats and row.belief.trusted for row in rows)
            if repeating:
                self._rest.after_repeat(repeating / len(rows))
            nodes, choice = [1] * len(rows), self._size.choose_roots(len(rows))
        else:
            nodes, choice = self._best(rows, context)
        self._rest.looked(choice.saved, self._overhead)
        self.decisions[choice.reason] += 1
        return nodes

    def learn(self, belief: Belief, expected: float, accepted: float) -> None:
        """One token of the text for which drafts were found, sent or not.

        Args:
            belief: of its row.
            expected: probability that one of them is the model's choice.
            accepted: the share in it of the one that was; 0 if none was.
        """
        if accepted and not belief.trusted:
            self._rest.after_accepted(1 / self._rows)
        belief.observe(expected, accepted)

    def _best(self, rows: Sequence[Row], context: int) -> tuple[list[int], Choice]:
        plan, number = self.sharing.plan(rows), len(rows)
        costs = self.cost.table(self.limit, context, number)
        explores = sum(row.belief.trusted for row in rows) / number
        choice = self._size.choose(plan.expected, costs, number, explores, self._overhead)
        return plan.split(choice.size), choice
