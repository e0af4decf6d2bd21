"""What a static step needs of the host: the draft trees of its rows, as one tensor of integers of a fixed size.

N nodes of all rows, padded to a bucket; R rows, padded to a bucket; W words of 64 ancestors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch

from lade.core.tree import Draft
from lade.static.buckets import nodes_bucket, rows_bucket
from lade.target.pieces import words_for

COLUMNS, PER_ROW = 9, 5  # of a node, before its words; of a row
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


class StepRow(NamedTuple):
    """What the host knows of one row of a step.

    Attributes:
        length: tokens in its slot, for steps in which the host says it.
        moves: from which place of the slot to which one a token goes before the step.
    """

    slot: int
    draft: Draft
    length: int = 0
    moves: Sequence[tuple[int, int]] = ()


Array = TypeVar("Array", torch.Tensor, np.ndarray)


class StepFields(Generic[Array]):
    """Views of one int64 tensor on any device, or of one array.

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

    def __init__(self, numbers: Array, size: Size) -> None:
        self.numbers: Array = numbers
        height = COLUMNS + size.words
        table: Any = numbers[: size.nodes * height].reshape(height, size.nodes)
        self.ids, self.slots, self.indices, self.parents, self.depths = table[:5]
        self.claims, self.orders, self.sources, self.goals = table[5:COLUMNS]
        self.words = table[COLUMNS:].T
        rest: Any = numbers[size.nodes * height :]
        by_row = rest[: PER_ROW * size.rows].reshape(PER_ROW, size.rows)
        self.rows, self.firsts, self.counts, self.trees, self.lengths = by_row
        self.integers = rest[PER_ROW * size.rows :]


StepInputs = StepFields[torch.Tensor]


def size_of(rows: Sequence[StepRow]) -> Size:
    """The smallest step that holds these rows.

    Raises:
        ValueError: none does.
    """
    nodes = moves = largest = 0
    for row in rows:
        count = len(row.draft.tokens)
        nodes, moves, largest = nodes + count, moves + len(row.moves), max(largest, count)
    return Size(nodes_bucket(max(nodes, moves)), rows_bucket(len(rows)), words_for(largest))
