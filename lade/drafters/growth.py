"""Best-first growth of draft trees that share a number of nodes: the likeliest node of all trees is next.

A node's children are what `lade.memory.mixture` predicts after its path; paths that share a prefix share nodes. A node
is expanded only when the number of nodes reaches it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from lade.base.compiled import compiled
from lade.drafters.heap import (
    ENTRIES,
    HEAPED,
    NODE,
    ORDER,
    ORIGIN,
    ROOM,
    TOKEN,
    TREE,
    WIDTH_OF_ENTRY,
    place_of,
    pop,
    push,
)
from lade.memory.evidence import FIRST_STAGES, FOUND, FOUND_MASSES, MOST, SCRATCH_FLOATS, SCRATCH_INTS
from lade.memory.hashing import Array
from lade.memory.mixture import expect
from lade.memory.places import follow, root
from lade.memory.row import DEPTH, MASSES, NODES, PARENT, STAGE, WIDTH, Row
from lade.memory.row import TOKEN as TOKEN_OF_NODE
from lade.memory.rows import row_at

UNEXPANDED, ADDED = -1, -2  # in place of a candidate's token: a node whose children are not known; a node of the tree
# Of a tree, its integers: the largest depth of a node; the most nodes, the root included; nodes; whether a further node
# found no room; whether the text's last token occurred earlier in it.
DEEPEST, LIMIT, SIZE, LIMITED, REPEATS = range(5)
TREE_INTS = 5
# Its floats: path probability below which a stage's tokens are skipped; that of all stages below which a token is
# skipped; that path probabilities hold in this text, over that of the most certain tree (a node's value is its path
# probability times this); path probability of the node added last, 0 if there is none; if a further node found no room,
# that of the last node that did, else 0.
FLOOR, LEAST, WEIGHT, NEWEST, CUT = range(5)
TREE_FLOATS = 5


class Forest(NamedTuple):
    """R trees that grow. What is there to work in, each thread has its own part of (`forest_of`).

    Attributes:
        ints: [R TREE_INTS] int64.
        floats: [R TREE_FLOATS] float64.
        heap: int32, entries by their value, the largest first, of equal ones the earliest.
        values: float64, of the entries.
        tokens: [SCRATCH_INTS] int32, to work in.
        masses: [SCRATCH_FLOATS] float64, to work in.
    """

    ints: Array
    floats: Array
    heap: Array
    values: Array
    tokens: Array
    masses: Array


class Trees(NamedTuple):
    """Trees that have grown, behind one another, at most N nodes in all.

    Attributes:
        nodes: [4 N] int32: their tokens, then their parents, depths and stages.
        masses: [N] float64, their path probabilities.
    """

    nodes: Array
    masses: Array


def new_trees(nodes: int) -> Trees:
    """For so many nodes in all."""
    return Trees(np.zeros(4 * nodes, np.int32), np.zeros(nodes))


def new_forest(rows: int, nodes: int, threads: int) -> Forest:
    """For so many trees of so many nodes together, grown by so many threads."""
    room = nodes * (MOST + 2)
    heap = np.zeros((threads, ORDER + room * (1 + WIDTH_OF_ENTRY)), np.int32)
    heap[:, ROOM] = room
    ints, floats = np.zeros(rows * TREE_INTS, np.int64), np.zeros(rows * TREE_FLOATS)
    scratch = np.zeros(threads * SCRATCH_INTS, np.int32), np.zeros(threads * SCRATCH_FLOATS)
    return Forest(ints, floats, heap.ravel(), np.zeros(threads * room), *scratch)


@compiled
def forest_of(forest: Forest, thread: int) -> Forest:
    """The forest with a thread's part of what is there to work in."""
    threads = len(forest.tokens) // SCRATCH_INTS
    heap, room = len(forest.heap) // threads, len(forest.values) // threads
    return Forest(
        forest.ints,
        forest.floats,
        forest.heap[thread * heap : (thread + 1) * heap],
        forest.values[thread * room : (thread + 1) * room],
        forest.tokens[thread * SCRATCH_INTS : (thread + 1) * SCRATCH_INTS],
        forest.masses[thread * SCRATCH_FLOATS : (thread + 1) * SCRATCH_FLOATS],
    )


@compiled
def grow(rows: Sequence[Row], first: int, last: int, forest: Forest, nodes: int, sure: float, prior: float) -> None:
    """Add the nodes of the largest values to the trees of some rows until they have `nodes` together.

    Where several trees grow, each gets the likeliest child of its root too, which says whether drafts hold in this
    text. These are counted only where their values are among the largest.

    Args:
        first, last: the rows.
        nodes: roots included.
        sure: nodes whose values are at least this are added beyond `nodes`, as far as their trees have room.
        prior: assumed probability of a node's likeliest child until the node is expanded.
    """
    ints, floats = forest.ints, forest.floats
    forest.heap[HEAPED] = forest.heap[ENTRIES] = 0
    room, heaviest = 0, 0.0
    for tree in range(first, last):
        room += ints[tree * TREE_INTS + LIMIT]
        heaviest = max(heaviest, floats[tree * TREE_FLOATS + WEIGHT])
    for tree in range(first, last):
        floats[tree * TREE_FLOATS + WEIGHT] /= heaviest
        floats[tree * TREE_FLOATS + NEWEST], ints[tree * TREE_INTS + SIZE] = 0.0, 1
        row = row_at(rows, tree)
        root(row)
        weight = floats[tree * TREE_FLOATS + WEIGHT]
        if ints[tree * TREE_INTS + DEEPEST] > 0:
            if last - first == 1:
                push(forest.heap, forest.values, prior * weight, tree, 0, UNEXPANDED, 0)
            else:
                expand(row, tree, 0, weight, forest, True)
    if last - first == 1:
        latest, count = grow_alone(row_at(rows, first), first, forest, nodes, room, sure, prior)
    else:
        latest, count = grow_together(rows, last - first, forest, nodes, room, sure, prior)
    for tree in range(first, last):
        own, at = tree * TREE_INTS, tree * TREE_FLOATS
        ints[own + LIMITED] = 1 if ints[own + SIZE] == ints[own + LIMIT] or count >= min(nodes, room) else 0
        floats[at + CUT] = min(latest / floats[at + WEIGHT], floats[at + NEWEST]) if ints[own + LIMITED] else 0.0


@compiled
def grow_together(
    rows: Sequence[Row], count: int, forest: Forest, nodes: int, room: int, sure: float, prior: float
) -> tuple[float, int]:
    """Grow from the entries of the heap. Returns the value of the latest node, and the number of nodes."""
    latest = inf
    while goes_on(forest, count, nodes, room, sure):
        entry = pop(forest.heap, forest.values)
        if take(row_at(rows, forest.heap[place_of(forest.heap, entry) + TREE]), entry, forest, prior):
            latest, count = forest.values[entry], count + 1
    return latest, count


@compiled
def grow_alone(
    row: Row, tree: int, forest: Forest, nodes: int, room: int, sure: float, prior: float
) -> tuple[float, int]:
    """The same for one tree."""
    latest, count = inf, 1
    while goes_on(forest, count, nodes, room, sure):
        entry = pop(forest.heap, forest.values)
        if take(row, entry, forest, prior):
            latest, count = forest.values[entry], count + 1
    return latest, count


@compiled
def goes_on(forest: Forest, count: int, nodes: int, room: int, sure: float) -> bool:
    """Whether so many nodes of all trees are not enough, of which there may be `room`."""
    if forest.heap[HEAPED] == 0 or count >= room:
        return False
    return count < nodes or forest.values[forest.heap[ORDER]] >= sure


@compiled
def take(row: Row, entry: int, forest: Forest, prior: float) -> bool:
    """Add the node of an entry, or expand it. Returns whether a node is to be counted."""
    at, heap = place_of(forest.heap, entry), forest.heap
    value, tree, node, token = forest.values[entry], heap[at + TREE], heap[at + NODE], heap[at + TOKEN]
    own = tree * TREE_INTS
    full = forest.ints[own + SIZE] >= forest.ints[own + LIMIT]
    if token == UNEXPANDED:
        if not full:
            expand(row, tree, node, value / prior, forest, False)
        return False
    if token != ADDED:
        if full:
            return False
        node = add(row, tree, node, token, heap[at + ORIGIN], value, forest)
    if row.ints[row.ints[NODES] + node * WIDTH + DEPTH] < forest.ints[own + DEEPEST]:
        push(heap, forest.values, value * prior, tree, node, UNEXPANDED, 0)
    return True


@compiled
def expand(row: Row, tree: int, node: int, value: float, forest: Forest, adds: bool) -> None:
    """Push the children of a node of this value.

    Args:
        adds: whether the likeliest of them becomes a node at once.
    """
    tokens, masses, own = forest.tokens, forest.masses, tree * TREE_FLOATS
    weight = forest.floats[own + WEIGHT]
    found = expect(row, node, forest.floats[own + FLOOR] * weight / value, tokens, masses)
    least = forest.floats[own + LEAST] * weight
    best = -1
    if adds and forest.ints[tree * TREE_INTS + LIMIT] > 1:
        best = 0
        for place in range(1, found):
            if masses[FOUND_MASSES + place] > masses[FOUND_MASSES + best]:
                best = place
    for place in range(found):
        child = value * masses[FOUND_MASSES + place]
        if child < least:
            continue
        token, stage = tokens[FOUND + place], tokens[FIRST_STAGES + place]
        if place == best:
            new = add(row, tree, node, token, stage, child, forest)
            push(forest.heap, forest.values, child, tree, new, ADDED, 0)
        else:
            push(forest.heap, forest.values, child, tree, node, token, stage)


@compiled
def add(row: Row, tree: int, parent: int, token: int, stage: int, value: float, forest: Forest) -> int:
    """Add a node of this value to a tree. Returns the node."""
    node, floats = forest.ints[tree * TREE_INTS + SIZE], forest.floats
    forest.ints[tree * TREE_INTS + SIZE] = node + 1
    floats[tree * TREE_FLOATS + NEWEST] = value / floats[tree * TREE_FLOATS + WEIGHT]
    row.floats[MASSES + node] = floats[tree * TREE_FLOATS + NEWEST]
    follow(row, node, parent, token)
    row.ints[row.ints[NODES] + node * WIDTH + STAGE] = stage
    return node


@compiled
def write_tree(row: Row, size: int, trees: Trees, begin: int) -> None:
    """Copy a tree of so many nodes; it stands from `begin` on."""
    ints, nodes, room = row.ints, trees.nodes, len(trees.masses)
    for node in range(size):
        at, to = ints[NODES] + node * WIDTH, begin + node
        nodes[to], nodes[room + to] = ints[at + TOKEN_OF_NODE], ints[at + PARENT]
        nodes[2 * room + to], nodes[3 * room + to] = ints[at + DEPTH], ints[at + STAGE]
        trees.masses[to] = row.floats[MASSES + node]
