"""The cut of draft trees into shares, one per rank: which nodes each computes, and whose logits each gives.

A share holds nodes whose logits are wanted, neighbours in depth-first order, and their ancestors. Neighbours have most
ancestors in common, and any run of them is a share: so the cut whose largest share is the smallest is found by
bisection. A run of m nodes of n, in order, has at most m + (depth of its first node) nodes. Knows numbers only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from lade.core.tree import Draft

Node = tuple[int, int]  # row, node


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank does in a step.

    Attributes:
        queries: the nodes whose logits it gives, row by row, in ascending order.
        nodes: per row the nodes that it computes, ascending; each follows its parent.
    """

    queries: Sequence[Node]
    nodes: Sequence[Sequence[int]]

    @property
    def size(self) -> int:
        return sum(map(len, self.nodes))


def cut(drafts: Sequence[Draft], ranks: int, packed: bool = True) -> list[Share]:
    """One share per rank, empty ones last; the first has all nodes where a cut saves none.

    Args:
        packed: whether a forward takes rows of unequal sizes without padding; else every row is cut alike.
    """
    whole = sum(map(len, drafts))
    if ranks > 1 and whole > len(drafts):
        shares = _together(drafts, ranks) if packed else _row_by_row(drafts, ranks)
        if max(share.size for share in shares) < whole:
            return shares
    return [_share(drafts, _queries(drafts)), *[_share(drafts, ())] * (ranks - 1)]


def _together(drafts: Sequence[Draft], ranks: int) -> list[Share]:
    nodes = [(row, node) for row, draft in enumerate(drafts) for node in _depth_first(draft)]
    return [_share(drafts, run) for run in _runs(drafts, nodes, ranks)]


def _row_by_row(drafts: Sequence[Draft], ranks: int) -> list[Share]:
    """Padding makes all rows as long as the longest, so each rank computes a part of every row."""
    found: list[list[Node]] = [[] for _ in range(ranks)]
    for row, draft in enumerate(drafts):
        for own, run in zip(found, _runs(drafts, [(row, node) for node in _depth_first(draft)], ranks), strict=True):
            own += run
    return [_share(drafts, own) for own in found]


def _queries(drafts: Sequence[Draft]) -> list[Node]:
    return [(row, node) for row, draft in enumerate(drafts) for node in draft.queries]


def _depth_first(draft: Draft) -> list[int]:
    """The nodes whose logits are wanted, each before those below it."""
    below: list[list[int]] = [[] for _ in draft.parents]
    for node, parent in enumerate(draft.parents[1:], 1):
        below[parent].append(node)
    order, waiting = [], [0]
    while waiting:
        node = waiting.pop()
        order.append(node)
        waiting += reversed(below[node])
    asked = set(draft.queries)
    return [node for node in order if node in asked]


def _runs(drafts: Sequence[Draft], nodes: Sequence[Node], ranks: int) -> list[Sequence[Node]]:
    """Runs of `nodes`, one per rank, whose largest share is as small as it can be."""
    alone = [drafts[row].depths[node] + 1 for row, node in nodes]  # nodes of a share that begins here
    added = [0, *(_new(drafts, *pair) for pair in pairwise(nodes))]  # nodes that each adds to the share before it
    least, most = max(alone), alone[0] + sum(added)
    limit = bisect_left(range(most), 1, lo=least, key=lambda size: len(_begins(alone, added, size)) <= ranks)
    begins = _begins(alone, added, limit)
    begins += [len(nodes)] * (ranks + 1 - len(begins))
    return [nodes[begin:end] for begin, end in pairwise(begins)]


def _begins(alone: Sequence[int], added: Sequence[int], limit: int) -> list[int]:
    """Where shares of at most `limit` nodes begin."""
    begins, size = [0], alone[0]
    for index in range(1, len(alone)):
        size += added[index]
        if size > limit:
            begins.append(index)
            size = alone[index]
    return begins


def _new(drafts: Sequence[Draft], before: Node, node: Node) -> int:
    """Nodes that a share needs for a node beside those for the one before it."""
    row, at = node
    depths, parents = drafts[row].depths, drafts[row].parents
    if before[0] != row:
        return depths[at] + 1
    one, other = before[1], at
    while one != other:  # up to the last common ancestor
        if depths[one] >= depths[other]:
            one = parents[one]
        else:
            other = parents[other]
    return depths[at] - depths[one]


def _share(drafts: Sequence[Draft], queries: Sequence[Node]) -> Share:
    needed: list[set[int]] = [set() for _ in drafts]
    for row, node in queries:
        while node >= 0 and node not in needed[row]:
            needed[row].add(node)
            node = drafts[row].parents[node]
    return Share(sorted(queries), [sorted(nodes) for nodes in needed])
