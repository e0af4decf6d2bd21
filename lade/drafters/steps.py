"""What a drafter computes in a step for all its rows at once: drafts, and what it learns.

Rows whose trees grow alone, and rows that learn for pools of their own, are shared out to threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lade.base.compiled import Compiled, compiled
from lade.base.threads import UNITS, WORKERS, spread, take
from lade.drafters.chains import keep_chain
from lade.drafters.growth import REPEATS, SIZE, TREE_INTS, Forest, Trees, forest_of, grow, write_tree
from lade.drafters.scratch import Scratch, scratch_of
from lade.memory.automaton import TOKENS, repeated
from lade.memory.hashing import Array
from lade.memory.mixture import weigh
from lade.memory.places import follow
from lade.memory.predictions import forget, learn_prediction, prefetch_rows, prefetch_slots
from lade.memory.recent import add_mass, begin_sums, keep_sums
from lade.memory.row import (
    FIRST,
    LAST,
    MASSES,
    NODES,
    OWN,
    PARENT,
    RECENT,
    RECENT_MASSES,
    SIBLING_MASSES,
    SIBLINGS,
    USES,
    WIDTH,
    Row,
    write_token,
)
from lade.memory.rows import row_at
from lade.memory.siblings import add_sibling, begin_siblings
from lade.memory.stages import RECYCLED_1


@compiled
def draft_rows(
    fork: int,
    threads: int,
    counters: Array,
    rows: Sequence[Row],
    new: Array,
    ends: Array,
    forest: Forest,
    trees: Trees,
    nodes: int,
    together: bool,
    sure: float,
    prior: float,
    chains: bool,
) -> None:
    """Take in the text that was emitted since the last draft, and grow the trees.

    Args:
        fork, threads, counters: as of `lade.base.threads.spread`.
        new: int32, the rows' new tokens behind one another.
        ends: [R] int64, where those of each row end.
        trees: are written here, in the order of the rows.
        nodes: of all trees together, or of each.
        together: whether all trees share the nodes.
        sure, prior: as of `grow`.
        chains: whether one path is kept of each tree.
    """
    first = forest_of(forest, 0)
    spread(fork, threads, draft_units, (counters, rows, new, ends, forest, nodes, together, sure, prior))
    if together:
        grow(rows, 0, len(ends), first, nodes, sure, prior)
    if chains:
        for place in range(len(ends)):
            keep_chain(row_at(rows, place), place, first)
    begin = 0
    for place in range(len(ends)):
        forest.ints[place * TREE_INTS + REPEATS] = 1 if repeated(row_at(rows, place).ints, OWN) > 0 else 0
        size = forest.ints[place * TREE_INTS + SIZE]
        write_tree(row_at(rows, place), size, trees, begin)
        begin += size


@compiled
def draft_units(
    counters: Array,
    rows: Sequence[Row],
    new: Array,
    ends: Array,
    forest: Forest,
    nodes: int,
    together: bool,
    sure: float,
    prior: float,
) -> None:
    """The share of one thread: rows whose texts are taken in, and whose trees grow unless they share the nodes."""
    own = forest_of(forest, take(counters, WORKERS))
    place = take(counters, UNITS)
    while place < len(ends):
        for token in range(ends[place - 1] if place else 0, ends[place]):
            write_token(row_at(rows, place), new[token])
        if not together:
            grow(rows, place, place + 1, own, nodes, sure, prior)
        place = take(counters, UNITS)


AHEAD = 2  # nodes that predictions are asked for before they are learned


class Lesson(NamedTuple):
    """What a step teaches about R rows.

    Attributes:
        step: int64, the rows behind one another. Of each the capacity of its pool, how many nodes its tree has already,
            then how many further nodes, nodes of the accepted path, and nodes whose predictions are learned; then the
            parents of the further ones and their tokens, the path and what the model chose after its nodes, the last
            ones and their lines in the predictions.
        begins: [R] int64, where each row begins in the step.
        ends: int64, of each pool where its rows end, which follow one another.
        tokens: [M top] int32, the model's predictions, likeliest first.
        probabilities: [M top] float32, theirs.
        top: tokens of a prediction.
    """

    step: Array
    begins: Array
    ends: Array
    tokens: Array
    probabilities: Array
    top: int


@compiled
def learn_rows(fork: int, threads: int, counters: Array, rows: Sequence[Row], lesson: Lesson, scratch: Scratch) -> None:
    """Learn from a step.

    Args:
        fork, threads, counters: as of `lade.base.threads.spread`.
        scratch: to work in.
    """
    spread(fork, threads, learn_units, (counters, rows, lesson, scratch))


@compiled
def learn_units(counters: Array, rows: Sequence[Row], lesson: Lesson, scratch: Scratch) -> None:
    """The share of one thread: pools, with their rows in order."""
    own, ends = scratch_of(scratch, take(counters, WORKERS)), lesson.ends
    unit = take(counters, UNITS)
    while unit < len(ends):
        for place in range(ends[unit - 1] if unit else 0, ends[unit]):
            learn_row(row_at(rows, place), lesson, lesson.begins[place], own)
        unit = take(counters, UNITS)


@compiled
def learn_row(row: Row, lesson: Lesson, begin: int, scratch: Scratch) -> None:
    """Learn from a row, whose part of the step stands from `begin` on."""
    step = lesson.step
    capacity, size, further = step[begin], step[begin + 1], step[begin + 2]
    path, learned, at = step[begin + 3], step[begin + 4], begin + 5
    for place in range(further):
        follow(row, size + place, step[at + place], step[at + further + place])
    at += 2 * further
    for depth in range(path):
        weigh(row, step[at + depth], step[at + path + depth], scratch.tokens, scratch.masses)
    last, at = step[at + path - 1], at + 2 * path
    if learned:
        begin_siblings(row.ints, row.floats, SIBLINGS, SIBLING_MASSES, row.ints[OWN + TOKENS] + path)
        learn_siblings(row, lesson, at, learned, last, size)
        learn_predictions(row, lesson, at, learned, scratch)
        forget(row.pool, row.pool_masses, capacity)


@compiled
def learn_predictions(row: Row, lesson: Lesson, begin: int, nodes: int, scratch: Scratch) -> None:
    """Learn the predictions of some nodes, which stand in the step from `begin` on, their lines behind them."""
    ints, sums, masses, slots = row.ints, scratch.sums, scratch.sum_masses, len(scratch.sum_masses)
    step, tokens, probabilities, top = lesson.step, lesson.tokens, lesson.probabilities, lesson.top
    recycled, end = ints[USES + RECYCLED_1], begin + nodes
    if recycled:
        for at in range(begin, end):
            prefetch_slots(row.pool, *context_of(ints, step[at]))
    number = begin_sums(ints, row.floats, RECENT, RECENT_MASSES, sums, masses, slots)
    for at in range(begin, end):
        line = step[at + nodes]
        if recycled:
            if at + AHEAD < end:
                prefetch_rows(row.pool, row.pool_masses, *context_of(ints, step[at + AHEAD]))
            a, b, c, d = context_of(ints, step[at])
            learn_prediction(row.pool, row.pool_masses, a, b, c, d, tokens, probabilities, line, top)
        for rank in range(line * top, line * top + top):
            number = add_mass(sums, masses, slots, number, tokens[rank], probabilities[rank])
    keep_sums(ints, row.floats, RECENT, RECENT_MASSES, sums, masses, slots, number, nodes)


@compiled
def context_of(ints: Array, number: int) -> tuple[int, int, int, int]:
    """The last four tokens of a node."""
    node = ints[NODES] + number * WIDTH
    return ints[node + FIRST], ints[node + FIRST + 1], ints[node + FIRST + 2], ints[node + LAST]


@compiled
def learn_siblings(row: Row, lesson: Lesson, begin: int, nodes: int, parent: int, size: int) -> None:
    """Keep what followed the children of the last accepted node: other drafts of the text's next token.

    Args:
        begin, nodes: as of `learn_predictions`.
        parent: that node.
        size: nodes of the tree; those behind them have no path probability.
    """
    ints, floats, step = row.ints, row.floats, lesson.step
    tokens, probabilities, top = lesson.tokens, lesson.probabilities, lesson.top
    for at in range(begin, begin + nodes):
        node, line = step[at], step[at + nodes]
        if node < size and ints[ints[NODES] + node * WIDTH + PARENT] == parent:
            weight = floats[MASSES + node]
            add_sibling(ints, floats, SIBLINGS, SIBLING_MASSES, weight, tokens, probabilities, line, top)


DRAFT, LEARN = Compiled(draft_rows), Compiled(learn_rows)
