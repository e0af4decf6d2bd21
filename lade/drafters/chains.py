"""Chains out of draft trees, for engines that verify no trees: one path each, that of most expected accepted tokens."""

from __future__ import annotations

from lade.base.compiled import compiled
from lade.drafters.growth import SIZE, TREE_INTS, Forest
from lade.drafters.heap import ORDER
from lade.memory.row import DEPTH, MASSES, NODES, PARENT, WIDTH, Row


@compiled
def keep_chain(row: Row, tree: int, forest: Forest) -> None:
    """Make the best path of a tree its only nodes; all others are lost.

    The expected number of accepted tokens of a path is the sum of its path probabilities. The forest's heap must not be
    in use.
    """
    sums, ints, own = forest.values, row.ints, row.ints[NODES]
    best, sums[0] = 0, 0.0
    for node in range(1, forest.ints[tree * TREE_INTS + SIZE]):
        sums[node] = sums[ints[own + node * WIDTH + PARENT]] + row.floats[MASSES + node]
        if sums[node] > sums[best]:
            best = node
    length, node = ints[own + best * WIDTH + DEPTH], best
    for depth in range(length, 0, -1):
        forest.heap[ORDER + depth] = node
        node = ints[own + node * WIDTH + PARENT]
    for depth in range(1, length + 1):  # a node's number is never below its depth
        node = forest.heap[ORDER + depth]
        for column in range(WIDTH):
            ints[own + depth * WIDTH + column] = ints[own + node * WIDTH + column]
        ints[own + depth * WIDTH + PARENT] = depth - 1
        row.floats[MASSES + depth] = row.floats[MASSES + node]
    forest.ints[tree * TREE_INTS + SIZE] = length + 1
