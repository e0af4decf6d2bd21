"""Choice of a tree's size by expected speed, with hysteresis and an exploration bonus. Knows numbers only."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest

from lade.pace.knots import KNOTS


@dataclass(frozen=True, slots=True)
class SizePolicy:
    """How sizes are compared. Speeds are relative to one token per step.

    With the same costs, trees a little wider than the fastest gained 2 to 3 % over a text of 192 tokens: that is what
    `bonus` and `exploration` are for. No record says what data the values were chosen on.

    Attributes:
        start: speed that drafts must promise after a step of one token.
        hysteresis: factor by which another size, one token included, must be better than the last one.
        bonus: exploration bonus of a node, in tokens: drafts are made of what the model predicted after nodes.
        exploration: largest share of the speed given up for the bonus.
        least_grown: nodes grown at least, the root included, so that a tree can come back.
    """

    start: float = 1.03
    hysteresis: float = 1.02
    bonus: float = 0.02
    exploration: float = 0.03
    least_grown: int = 8


SIZE = SizePolicy()
NOTHING, WORTHLESS = "nothing to draft", "drafts cost more than they bring"
FRUITLESS = (NOTHING, WORTHLESS)  # reasons for one token alone


def expected_tokens(rows: Sequence[Sequence[float]], holds: float) -> list[float]:
    """Expected tokens per row of a step, for 1, 2, ... nodes per row.

    Args:
        rows: path probabilities of each row's nodes, the root's 1 first.
        holds: probability that these hold.
    """
    masses = rows[0] if len(rows) == 1 else [sum(nodes) for nodes in zip_longest(*rows, fillvalue=0.0)]
    share = holds / len(rows)
    return list(accumulate((share * mass for mass in masses[1:]), initial=1.0))


class Size:
    """The sizes of one call's trees: nodes per row, the root included.

    Args:
        limit: the largest.

    Attributes:
        last: the latest choice.
    """

    def __init__(self, limit: int, policy: SizePolicy = SIZE) -> None:
        self._limit, self._policy = limit, policy
        self.last = limit
        self._cut = False  # whether the last tree was larger than the choice

    def choose_root(self) -> tuple[int, str]:
        """One node, where no draft was found."""
        self.last = 1
        return 1, NOTHING

    def grown(self) -> int:
        """Nodes worth growing: the last choice, and one knot more if the last tree was not cut."""
        wanted = max(self.last + (not self._cut), self._policy.least_grown)
        return min(self._limit, next((size for size in KNOTS if size >= wanted), self._limit))

    def choose(self, tokens: Sequence[float], costs: Sequence[float], explores: bool) -> tuple[int, str]:
        """The next size, and the reason: 1 and `WORTHLESS` where no draft is worth its cost.

        Sizes are the knots and the whole tree. Costs between the knots are not known: with a 130M model in float32 on a
        CPU, 6 tokens cost more than 8 (1.85 and 1.66 times one token), and choosing knots only was 7 % faster.

        Args:
            tokens: expected tokens per step, by nodes from 1 on (`expected_tokens`).
            costs: of a step by nodes from 0 on, over those of one node.
            explores: whether the exploration bonus counts.
        """
        whole = len(tokens)
        sizes = (*KNOTS[: bisect_left(KNOTS, whole)], whole)
        nodes, reason = self._fastest({size: tokens[size - 1] / costs[size] for size in sizes}, costs, explores)
        self.last, self._cut = nodes, nodes < whole
        return nodes, reason

    def _fastest(self, speeds: Mapping[int, float], costs: Sequence[float], explores: bool) -> tuple[int, str]:
        policy = self._policy
        fastest = max(speeds.values())
        if fastest < (policy.start if self.last == 1 else policy.start / policy.hysteresis):
            return 1, WORTHLESS
        bonus = policy.bonus if explores else 0.0
        values = {
            size: speed + bonus * size / costs[size]
            for size, speed in speeds.items()
            if speed >= (1 - policy.exploration) * fastest
        }
        best = max(values, key=values.__getitem__)
        if best != self.last and values[best] < policy.hysteresis * values.get(self.last, 0.0):
            return self.last, "as before"
        return best, "limit reached" if best == self._limit else "most tokens per second"
