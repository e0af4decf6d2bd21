"""What a static step needs of the host: the draft trees of its rows, as one tensor of integers of a fixed size.

N nodes of all rows, padded to a bucket; R rows, padded to a bucket; W words of 64 ancestors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch

from lade.core.tree import Draft
from lade.kernels.rows import CHAIN
from lade.static.buckets import nodes_bucket, rows_bucket
from lade.target.pieces import WORD, Piece, ancestors

COLUMNS, DEPTH = 9, 4  # of a node, before its words; the one of its depth
PER_ROW = 5
NEVER, CERTAIN = -1, -2  # claims of nodes that no choice accepts, and of those that need none
UNASKED = -1  # order of nodes before the first one whose logits are asked for


class Size(NamedTuple):
    """The buckets of a step: N, R, W."""

    nodes: int
    rows: int
    words: int

    @property
    def numbers(self) -> int:
        """How many integers its inputs are."""
        return self.nodes * (COLUMNS + 1 + 2 * self.words) + PER_ROW * self.rows


@dataclass(frozen=True, slots=True)
class StepRow:
    """What the host knows of one row of a step.

    Attributes:
        length: tokens in its slot, for steps in which the host says it.
        moves: from which place of the slot to which one a token goes before the step.
    """

    slot: int
    draft: Draft
    length: int = 0
    moves: Sequence[tuple[int, int]] = ()


class StepInputs:
    """Views of one int64 tensor, on any device.

    Args:
        numbers: as many as the size says.

    Attributes:
        ids: [N] tokens.
        slots: [N] where each node's row is stored; the spare slot for padding nodes.
        indices: [N] of the node in its own tree.
        parents: [N] its parent among the step's nodes; itself for a root.
        depths: [N] distance from its root.
        claims: [N] the token that must be chosen after the parent so that the node is accepted; or `NEVER`, `CERTAIN`.
        orders: [N] how many tokens are emitted in this step before the one that is chosen after this node, if it is
            accepted; `UNASKED` before the first node of a tree whose logits are asked for.
        sources, goals: [N] places of tokens that were kept of the last step, and where they go first.
        words: [N, W] bit j of a node's words says whether it sees node j of its tree.
        rows: [R] slots of the step's rows.
        firsts, counts: [R] the first node of each row, and how many it has.
        trees: [R] where each row's tree lies in `integers`; `CHAIN` for padding rows.
        lengths: [R] tokens in each row's slot, if the host says it.
        integers: [N * (1 + W)] per row its depths and its words, as `lade.kernels` reads them.
    """

    def __init__(self, numbers: torch.Tensor, size: Size) -> None:
        self.numbers, height = numbers, COLUMNS + size.words
        table = numbers[: size.nodes * height].view(height, size.nodes)
        self.ids, self.slots, self.indices, self.parents, self.depths = table[:5]
        self.claims, self.orders, self.sources, self.goals = table[5:COLUMNS]
        self.words = table[COLUMNS:].T
        rest = numbers[size.nodes * height :]
        by_row = rest[: PER_ROW * size.rows].view(PER_ROW, size.rows)
        self.rows, self.firsts, self.counts, self.trees, self.lengths = by_row
        self.integers = rest[PER_ROW * size.rows :]


def size_of(rows: Sequence[StepRow]) -> Size:
    """The smallest step that holds these rows.

    Raises:
        ValueError: none does.
    """
    nodes = sum(len(row.draft) for row in rows)
    moves = sum(len(row.moves) for row in rows)
    words = -(-max(len(row.draft) for row in rows) // WORD)
    return Size(nodes_bucket(max(nodes, moves)), rows_bucket(len(rows)), words)


def packed_inputs(rows: Sequence[StepRow], size: Size, spare: int, capacity: int) -> np.ndarray:
    """`StepInputs.numbers` of a draft in the slot of each row.

    Args:
        spare: the slot of padding nodes and rows.
        capacity: tokens of a slot.
    """
    table = np.zeros((COLUMNS + size.words, size.nodes), dtype=np.int64)
    first = 0
    for row in rows:
        end = first + len(row.draft)
        table[: COLUMNS - 2, first:end] = _columns(row.slot, row.draft, first)
        first = end
    if rows:
        words = ancestors([Piece.whole(row.draft) for row in rows]).T
        table[COLUMNS : COLUMNS + len(words), :first] = words
    padding = np.arange(size.nodes - first)
    table[1:4, first:] = np.broadcast_to(spare, padding.shape), padding, padding + first
    table[5:7, first:] = [[NEVER], [UNASKED]]
    table[7:COLUMNS] = spare * capacity
    moves = [(row.slot * capacity + one, row.slot * capacity + other) for row in rows for one, other in row.moves]
    table[7:COLUMNS, : len(moves)] = np.array(moves, np.int64).reshape(-1, 2).T
    return np.concatenate([table.reshape(-1), *_by_row(rows, table, size, spare)]).astype(np.int64)


def _by_row(rows: Sequence[StepRow], table: np.ndarray, size: Size, spare: int) -> Iterator[np.ndarray | list[int]]:
    """Slots, first nodes, numbers of nodes, places of trees and lengths of all rows, and the trees."""
    counts, padding = [len(row.draft) for row in rows], [0] * (size.rows - len(rows))
    firsts = [0, *accumulate(counts)][:-1]
    trees, places = list[np.ndarray](), list[int]()
    for first, count in zip(firsts, counts, strict=True):
        places.append(sum(map(len, trees)))
        own = table[COLUMNS : COLUMNS + -(-count // WORD), first : first + count]
        trees += [table[DEPTH, first : first + count], own.T.reshape(-1)]
    yield [*(row.slot for row in rows), *(spare for _ in padding), *firsts, *padding, *counts, *padding]
    yield [*places, *(CHAIN for _ in padding), *(row.length for row in rows), *padding]
    yield from trees
    yield np.zeros(size.nodes * (1 + size.words) - sum(map(len, trees)), np.int64)


def _columns(slot: int, draft: Draft, first: int) -> list[list[int]]:
    count = len(draft)
    asked = draft.queries[0] if draft.queries else count - 1
    before = draft.depths[asked] if draft.queries else count
    children, queried = set(draft.children.values()), set(draft.queries)
    claims = [
        CERTAIN if node <= asked else token if node in children and node in queried else NEVER
        for node, token in enumerate(draft.tokens)
    ]
    return [
        draft.tokens,
        [slot] * count,
        list(range(count)),
        [first + max(parent, 0) for parent in draft.parents],
        draft.depths,
        claims,
        [max(depth - before, UNASKED) for depth in draft.depths],
    ]
