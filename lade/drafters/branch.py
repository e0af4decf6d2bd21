"""The tree of one request while a model drafts it, and the forward that computes its newest level.

n rows of the drafting model, M frontier nodes, V its vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from lade.core.tree import Draft, TreeBuilder
from lade.target.growth import grow
from lade.target.model import HFTarget

ENDLESS = 1 << 30  # deeper than any draft goes


@dataclass(slots=True)
class Branch:
    """The tree of one request as the drafting model sees it: tokens that it has yet to catch up with stand above.

    Attributes:
        tree: begins with the first token that the drafting model has not kept.
        root: the node that is the target's root.
        deepest: how deep below that root the drafting model's positions reach.
        room: the most nodes that it may have from that root on.
        computed: nodes that it has computed in this step.
        drawn, laws: as in `Proposals`, with this tree's nodes.
    """

    tree: TreeBuilder
    root: int
    deepest: int
    room: int = ENDLESS
    computed: int = 0
    drawn: dict[int, Sequence[int]] = field(default_factory=dict)
    laws: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def frontier(self) -> range:
        """The nodes of the last level."""
        return range(max(self.computed, self.root), len(self.tree.tokens))

    def drafted(self, token: int) -> Draft:
        """The tree from the target's root on, which carries this token; the logits of all nodes are wanted."""
        tree = self.tree.below(self.root) if self.root else self.tree
        tree.tokens[0] = token
        tree.queries = set(range(len(tree.tokens)))
        return tree.build()

    @property
    def full(self) -> bool:
        return len(self.tree.tokens) - self.root >= self.room

    @property
    def depth(self) -> int:
        return self.tree.depths[-1] - self.tree.depths[self.root]


def expand(target: HFTarget, rows: Sequence[Branch], going: Sequence[Branch]) -> torch.Tensor:
    """Compute the nodes of some branches that are not computed yet.

    Args:
        rows: the branch in each of the target's first n rows.
        going: those to compute.

    Returns:
        [M, V] logits of their frontiers in turn.
    """
    slots = {id(branch): slot for slot, branch in enumerate(rows)}
    turns = [(slots[id(branch)], branch) for branch in going]
    ends = [branch.computed for branch in rows]
    for slot, branch in turns:
        ends[slot] = len(branch.tree.tokens)
    # Rows with fewer new nodes compute their last ones again: padding behind them might be past the row's room.
    nodes = max(len(branch.tree.tokens) - branch.computed for branch in going)
    spans = [(max(0, end - nodes), end) for end in ends]
    places = [
        (slot, node - spans[slot][0]) for branch in going for slot in (slots[id(branch)],) for node in branch.frontier
    ]
    columns = sorted({column for _, column in places})
    logits = grow(target, [branch.tree for branch in rows], spans, columns)
    if len(places) == logits.shape[0] * logits.shape[1] and places == sorted(places):
        return logits.flatten(0, 1)
    where = {column: index for index, column in enumerate(columns)}
    return logits[[slot for slot, _ in places], [where[column] for _, column in places]]
