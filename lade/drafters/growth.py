"""Best-first growth of draft trees that share a number of nodes: the likeliest node of all trees is next.

A node's children are what `lade.memory.mixture` predicts after its path; paths that share a prefix share nodes. A node
is expanded only when the number of nodes reaches it. Knows tokens and trees; no model, no request and no source.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from lade.core.tree import TreeBuilder
from lade.memory.mixture import Mixture, Place

Unexpanded = tuple[float, int]  # a node whose children are not known: negative estimate of the best one's value, node
Candidate = tuple[float, int, int, int]  # a token that may become a node: negative value, parent, token, stage
ADDED = -1  # the token of a candidate that is a node already, here in the place of its parent


@dataclass(slots=True, eq=False)
class GrowingTree:
    """One of the trees.

    Attributes:
        builder: has the root only.
        mixture: predicts tokens; its pool's lock is taken while it does.
        places: of the nodes.
        deepest: the largest depth of a node.
        most: the most nodes, the root included.
        floor: path probability below which a stage's tokens are skipped.
        least: path probability, all stages added up, below which a token is skipped.
        weight: that path probabilities hold in this text. `Growth` divides it by that of the most certain tree; a
            node's value is its path probability times the weight.
        masses: path probabilities of the nodes.
        last: that of the node added last; 0 if there is none.
        limited: whether a further node found no room.
        cut: then the path probability of the last node that found room; else 0.
    """

    builder: TreeBuilder
    mixture: Mixture
    places: list[Place]
    deepest: int
    most: int
    floor: float
    least: float
    weight: float
    masses: list[float] = field(default_factory=lambda: [1.0])
    last: float = 0.0
    limited: bool = False
    cut: float = 0.0

    def expect(self, node: int, value: float) -> tuple[dict[int, float], dict[int, int]]:
        """What may follow a node of this value (`Mixture.expect`)."""
        floor = self.floor * self.weight / value
        with self.mixture.pool.lock:
            return self.mixture.expect(self.places[node], self.builder.depths[node], floor)

    def add(self, parent: int, token: int, source: str, value: float) -> None:
        """Add a node of this value."""
        self.last = value / self.weight
        self.masses.append(self.last)
        self.builder.append(parent, token, source)
        self.places.append(self.mixture.follow(self.places[parent], token))


class Growth:
    """The growth of some trees.

    Args:
        names: of the stages.
        child_prior: assumed probability of a node's likeliest child until the node is expanded.
    """

    def __init__(self, trees: Sequence[GrowingTree], names: Sequence[str], child_prior: float) -> None:
        self._trees, self._names, self._prior = trees, names, child_prior
        heaviest = max(tree.weight for tree in trees)
        for tree in trees:
            tree.weight /= heaviest
        # Per node of all trees, the roots first: its tree, and its number there.
        self._owners, self._numbers = [*trees], [0] * len(trees)

    def run(self, nodes: int) -> None:
        """Add the nodes of the largest values until all trees have `nodes` together, roots included.

        Where several trees grow, each gets the likeliest child of its root too, which says whether drafts hold in this
        text. These are counted only where their values are among the largest.
        """
        nodes = min(nodes, sum(tree.most for tree in self._trees))
        unexpanded, candidates = self._roots()
        value, count = self._grow(unexpanded, candidates, nodes)
        for tree in self._trees:
            tree.limited = len(tree.places) == tree.most or count == nodes
            tree.cut = min(-value / tree.weight, tree.last) if tree.limited else 0.0

    def _roots(self) -> tuple[list[Unexpanded], list[Candidate]]:
        """The heaps to grow from."""
        roots = [(-self._prior * tree.weight, node) for node, tree in enumerate(self._trees) if tree.deepest > 0]
        if len(self._trees) == 1:
            return roots, []
        added: list[Candidate] = []
        for root in roots:
            candidates: list[Candidate] = []
            self._expand(*root, candidates)
            if candidates and self._trees[root[1]].most > 1:
                value, *child = heappop(candidates)
                added.append((value, self._add(value, *child), ADDED, 0))
            added += candidates
        heapify(added)
        return [], added

    def _grow(self, unexpanded: list[Unexpanded], candidates: list[Candidate], nodes: int) -> tuple[float, int]:
        """Grow from these heaps. Returns the negative value of the latest node, and the number of nodes."""
        owners, prior = self._owners, self._prior
        latest, count = -math.inf, len(self._trees)
        while (candidates or unexpanded) and count < nodes:
            if unexpanded and (not candidates or unexpanded[0] < candidates[0]):
                self._expand(*heappop(unexpanded), candidates)
                continue
            value, node, token, stage = heappop(candidates)
            if token != ADDED:
                if len(owners[node].places) == owners[node].most:
                    continue
                node = self._add(value, node, token, stage)
            latest, count = value, count + 1
            tree = owners[node]
            if tree.builder.depths[self._numbers[node]] < tree.deepest:
                heappush(unexpanded, (value * prior, node))
        return latest, count

    def _expand(self, estimate: float, node: int, candidates: list[Candidate]) -> None:
        """Add the children of a node to the candidates."""
        tree, value = self._owners[node], estimate / self._prior
        if len(tree.places) == tree.most:
            return
        masses, stages = tree.expect(self._numbers[node], -value)
        least = -tree.least * tree.weight
        for token, mass in masses.items():
            negative = value * mass
            if negative <= least:
                heappush(candidates, (negative, node, token, stages[token]))

    def _add(self, value: float, parent: int, token: int, stage: int) -> int:
        """Add a node of this negative value. Returns its number among the nodes of all trees."""
        tree = self._owners[parent]
        self._numbers.append(len(tree.places))
        tree.add(self._numbers[parent], token, self._names[stage], -value)
        self._owners.append(tree)
        return len(self._owners) - 1
