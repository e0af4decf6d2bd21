"""What a static step needs of the host: the draft trees of its rows, as one tensor of integers of a fixed size.

N nodes of all rows, padded to a bucket; R rows, padded to a bucket; W words of 64 ancestors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
import torch

from lade.core.tree import Draft
from lade.kernels.rows import CHAIN
from lade.target.pieces import WORD, Piece, ancestors

COLUMNS, DEPTH = 7, 4  # of a node, before its words; the one of its depth
NEVER, CERTAIN = -1, -2  # claims of nodes that no choice accepts, and of those that need none
UNASKED = -1  # order of nodes before the first one whose logits are asked for


class StepInputs:
    """Views of one int64 tensor, on any device.

    Args:
        numbers: [N * (8 + 2 * W) + 4 * R].

    Attributes:
        ids: [N] tokens.
        slots: [N] where each node's row is stored; the spare slot for padding nodes.
        indices: [N] of the node in its own tree.
        parents: [N] its parent among the step's nodes; itself for a root.
        depths: [N] distance from its root.
        claims: [N] the token that must be chosen after the parent so that the node is accepted; or `NEVER`, `CERTAIN`.
        orders: [N] how many tokens are emitted in this step before the one that is chosen after this node, if it is
            accepted; `UNASKED` before the first node of a tree whose logits are asked for.
        words: [N, W] bit j of a node's words says whether it sees node j of its tree.
        rows: [R] slots of the step's rows.
        firsts, counts: [R] the first node of each row, and how many it has.
        trees: [R] where each row's tree lies in `integers`; `CHAIN` for padding rows.
        integers: [N * (1 + W)] per row its depths and its words, as `lade.kernels` reads them.
    """

    def __init__(self, numbers: torch.Tensor, nodes: int, words: int) -> None:
        self.numbers = numbers
        table = numbers[: nodes * (COLUMNS + words)].view(COLUMNS + words, nodes)
        self.ids, self.slots, self.indices, self.parents, self.depths, self.claims, self.orders = table[:COLUMNS]
        self.words = table[COLUMNS:].T
        rest = numbers[nodes * (COLUMNS + words) :]
        each = nodes * (1 + words)
        self.rows, self.firsts, self.counts, self.trees = rest[: len(rest) - each].view(4, -1)
        self.integers = rest[len(rest) - each :]

    @classmethod
    def empty(cls, nodes: int, rows: int, words: int, device: torch.device) -> StepInputs:
        size = nodes * (COLUMNS + 1 + 2 * words) + 4 * rows
        return cls(torch.zeros(size, dtype=torch.long, device=device), nodes, words)


def words_for(drafts: Sequence[Draft]) -> int:
    """W of some trees."""
    return -(-max(map(len, drafts)) // WORD)


def packed_inputs(slots: Sequence[int], drafts: Sequence[Draft], nodes: int, rows: int, spare: int) -> np.ndarray:
    """`StepInputs.numbers` of a draft in each of these slots.

    Args:
        nodes, rows: the buckets N and R.
        spare: the slot of padding nodes and rows.
    """
    words = words_for(drafts)
    table = np.zeros((COLUMNS + words, nodes), dtype=np.int64)
    first = 0
    for slot, draft in zip(slots, drafts, strict=True):
        end = first + len(draft)
        table[:COLUMNS, first:end] = _columns(slot, draft, first)
        first = end
    table[COLUMNS:, :first] = ancestors([Piece.whole(draft) for draft in drafts]).T
    padding = np.arange(nodes - first)
    table[1:4, first:] = np.broadcast_to(spare, padding.shape), padding, padding + first
    table[5:COLUMNS, first:] = [[NEVER], [UNASKED]]
    return np.concatenate([table.reshape(-1), *_by_row(slots, drafts, table, rows, spare)]).astype(np.int64)


def _by_row(
    slots: Sequence[int], drafts: Sequence[Draft], table: np.ndarray, rows: int, spare: int
) -> Iterator[np.ndarray | list[int]]:
    """Slots, first nodes, numbers of nodes and places of trees of all rows, and the trees."""
    counts, padding, (height, nodes) = [len(draft) for draft in drafts], [0] * (rows - len(slots)), table.shape
    firsts = [0, *accumulate(counts)][:-1]
    trees, places = list[np.ndarray](), list[int]()
    for first, count in zip(firsts, counts, strict=True):
        places.append(sum(map(len, trees)))
        own = table[COLUMNS : COLUMNS + -(-count // WORD), first : first + count]
        trees += [table[DEPTH, first : first + count], own.T.reshape(-1)]
    yield [*slots, *(spare for _ in padding), *firsts, *padding, *counts, *padding, *places, *(CHAIN for _ in padding)]
    yield from trees
    yield np.zeros(nodes * (1 + height - COLUMNS) - sum(map(len, trees)), np.int64)


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
