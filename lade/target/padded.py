"""A forward of rows side by side, [n, T] with padding: for eager attention, and models with own attention code.

n rows, T nodes to compute, C nodes of a row's tree up to the last of them, M queried nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from lade.target.pieces import Piece
from lade.target.transfer import transfer

if TYPE_CHECKING:
    from lade.target.model import HFTarget

PADDED = ("padded",)  # the way of attention


class PaddedRows:
    """Computes pieces of trees side by side."""

    def __init__(self, target: HFTarget) -> None:
        self.target = target

    def compute(
        self, slots: Sequence[int], pieces: Sequence[Piece]
    ) -> tuple[torch.Tensor, Sequence[Mapping[int, int]]]:
        """[M, V] logits of the queries, and per row the line of each node in them."""
        target, rows = self.target, len(pieces)
        nodes = max(len(piece.tokens) for piece in pieces)
        columns = max(piece.first for piece in pieces) + nodes
        queries = sorted({node - piece.first for piece in pieces for node in piece.queries})
        some = len(queries) < nodes
        target.cache.prepare(slots, [columns] * rows, [piece.first for piece in pieces])
        padded = [piece.padded(nodes, columns) for piece in pieces]
        indexed: list[int] = []
        if target.follows_index:  # of the first row; the temperature of other rows is the same (`lade.entry.fallback`)
            length = target.cache.lengths[slots[0]]
            indexed = [length + depth - node for node, depth in enumerate(padded[0].own_depths)]
        roots = [target.positions[slot] for slot in slots]
        sent = transfer(target.cache, slots, roots, padded, (queries or [0]) if some else (), indexed, target.device)
        target.cache.indexed = sent.indexed
        logits = target.logits(
            sent.ids.view(rows, nodes),
            sent.positions.view(rows, nodes),
            target.masks.padded(sent.sights),
            sent.asked,
        )
        target.clock.attended(PADDED)
        lines = [
            {piece.first + column: row * len(queries) + line for line, column in enumerate(queries)}
            for row, piece in enumerate(pieces)
        ]
        return logits[:, : len(queries)].flatten(0, 1), lines
