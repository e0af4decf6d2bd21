"""Accepted tokens that a rank has not computed, and the trees that it computes behind them.

Another rank computed them as a part of its share. They are fed again, as a chain before the root, in this rank's next
forward. Knows tokens and trees, no model.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lade.core.tree import Draft


@dataclass(frozen=True, slots=True)
class Behind:
    """What a rank computes of one row.

    Attributes:
        draft: the tokens that it lacks, then its part of the tree.
        numbers: node of the whole tree -> its number in the draft.
        lacking: tokens before the root.
    """

    draft: Draft
    numbers: dict[int, int]
    lacking: int

    def kept(self, path: Sequence[int]) -> tuple[list[int], int]:
        """The nodes of the draft that stay in the KV cache, and how many nodes of an accepted path are among them."""
        computed = beginning(path, self.numbers)
        return [*range(self.lacking), *(self.numbers[node] for node in path[:computed])], computed


def beginning(path: Sequence[int], nodes: Collection[int]) -> int:
    """How many nodes of a path, from the root on, are among some nodes."""
    return next((index for index, node in enumerate(path) if node not in nodes), len(path))


def behind(draft: Draft, lacking: Sequence[int], nodes: Sequence[int], queries: Sequence[int]) -> Behind:
    """The part of a tree with these nodes, ascending, behind the tokens that a rank lacks.

    Args:
        queries: those of them whose logits are wanted.
    """
    first = len(lacking)
    numbers = {node: number for number, node in enumerate(nodes, first)}
    parents = [first - 1 if node == 0 else numbers[draft.parents[node]] for node in nodes]
    tokens = [*lacking, *(draft.tokens[node] for node in nodes)]
    part = Draft(
        tokens,
        [*range(-1, first - 1), *parents],
        [*range(first), *(first + draft.depths[node] for node in nodes)],
        [numbers[node] for node in queries],
        ["draft"] * len(tokens),
    )
    return Behind(part, numbers, first)
