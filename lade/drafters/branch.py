"""The draft tree of one request while a model grows it, and the forward that computes its last level.

n rows of the draft model, M frontier nodes, V its vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from lade.core.tree import Draft, TreeBuilder
from lade.target.growth import grow
from lade.target.model import HFTarget

UNLIMITED = 1 << 30  # more nodes, and more depth, than any draft has


@dataclass(slots=True)
class Branch:
    """The tree of one request in the draft model: the accepted tokens that it has not computed, then the draft.

    Attributes:
        tree: starts with the first token that is not in the draft model's KV cache.
        root: the node that is the target's root.
        deepest: the greatest depth below that root.
        room: the most nodes from that root on.
        computed: nodes that the draft model has computed in this step.
        drawn, laws: as in `Proposals`, by this tree's nodes.
    """

    tree: TreeBuilder
    root: int
    deepest: int
    room: int = UNLIMITED
    computed: int = 0
    drawn: dict[int, Sequence[int]] = field(default_factory=dict)
    laws: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def frontier(self) -> range:
        """The nodes of the last level, which are not computed."""
        return range(max(self.computed, self.root), len(self.tree.tokens))

    def drafted(self, token: int) -> Draft:
        """The draft from the target's root on, which holds `token`, with the logits of all nodes asked for."""
        tree = self.tree.below(self.root) if self.root else self.tree
        tree.tokens[0] = token
        return tree.whole()

    @property
    def full(self) -> bool:
        return len(self.tree.tokens) - self.root >= self.room

    @property
    def depth(self) -> int:
        return self.tree.depths[-1] - self.tree.depths[self.root]


def expand(target: HFTarget, slots: Sequence[int], rows: Sequence[Branch], active: Sequence[Branch]) -> torch.Tensor:
    """Compute the nodes of some branches that are not computed yet.

    Args:
        target: the draft model.
        slots: of the rows.
        rows: the branches of all rows that take part in the forward.
        active: the branches to compute.

    Returns:
        [M, V] logits of the frontiers, branch by branch in the order of `active`.
    """
    index = {id(branch): row for row, branch in enumerate(rows)}
    spans = [(branch.computed, branch.computed) for branch in rows]
    queries: list[Sequence[int]] = [()] * len(rows)
    for branch in active:
        row = index[id(branch)]
        spans[row], queries[row] = (branch.computed, len(branch.tree.tokens)), branch.frontier
    logits, lines = grow(target, slots, [branch.tree for branch in rows], spans, queries)
    chosen = [lines[index[id(branch)], node] for branch in active for node in branch.frontier]
    return logits if chosen == list(range(len(logits))) else logits[chosen]
