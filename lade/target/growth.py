"""Trees that a drafting model grows over several forwards of a step, each of which computes the newest nodes.

Keys and values of nodes are stored behind the row's tokens, in node order, until the step keeps a path. Knows targets
and trees, nothing of choosing tokens.

M queried nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import GenerationConfig

from lade.core.tree import TreeBuilder, chain
from lade.target.model import HFTarget
from lade.target.pieces import Piece

CHUNK = 512  # tokens of a text in one forward: bounds the memory of masks
Span = tuple[int, int]  # nodes that a forward computes: first, end (exclusive)


def prefill_texts(target: HFTarget, texts: Sequence[Sequence[int]], most: int | None = None) -> None:
    """Prefill all tokens of each text but the last, which is the first root; texts may differ in length.

    Args:
        most: tokens that a text may come to have; `None` if nothing bounds them.
    """
    width = max(map(len, texts)) - 1
    device = target.device
    padding = [width - len(text) + 1 for text in texts]
    ids = torch.tensor(
        [list(text[:1]) * pad + list(text[:-1]) for pad, text in zip(padding, texts, strict=True)], device=device
    )
    mask = torch.tensor([[0] * pad + [1] * (width - pad) for pad in padding], device=device)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    inputs = {"attention_mask": mask, "position_ids": positions, "use_cache": True}
    if target.slices_logits:
        inputs["logits_to_keep"] = 1
    target.prefill(ids, GenerationConfig(), inputs, most)


def read(target: HFTarget, slots: Sequence[int], texts: Sequence[Sequence[int]]) -> None:
    """Add texts to slots, in chunks; the logits are not wanted. Texts may be empty, and differ in length."""
    for first in range(0, max(map(len, texts), default=0), CHUNK):
        rows = [
            (slot, text[first : first + CHUNK]) for slot, text in zip(slots, texts, strict=True) if len(text) > first
        ]
        chunks = [Piece.whole(chain(list(chunk), asked=False)) for _, chunk in rows]
        target.compute([slot for slot, _ in rows], chunks)
        target.keep([slot for slot, _ in rows], [range(len(chunk)) for _, chunk in rows])


def grow(
    target: HFTarget,
    slots: Sequence[int],
    trees: Sequence[TreeBuilder],
    spans: Sequence[Span],
    queries: Sequence[Sequence[int]],
) -> tuple[torch.Tensor, dict[tuple[int, int], int]]:
    """Compute the newest nodes of trees in some slots.

    Args:
        slots: one per tree.
        trees: the root follows the slot's last cached token.
        spans: the nodes to compute per tree; earlier ones were computed in this step. A span may be empty.
        queries: per tree, ascending nodes of its span whose logits are wanted.

    Returns:
        [M, V] logits; and the line in them of (index of a tree, node).
    """
    rows = [row for row, (first, end) in enumerate(spans) if first < end or not target.packed]
    if not target.packed:  # Rows with fewer new nodes compute their last ones again: padding might exceed their room.
        nodes = max(end - first for first, end in spans)
        spans = [(max(0, end - nodes), end) for _, end in spans]
    pieces = [_piece(target, trees[row], spans[row], queries[row]) for row in rows]
    logits, lines = target.compute([slots[row] for row in rows], pieces)
    return logits, {(row, node): line for row, each in zip(rows, lines, strict=True) for node, line in each.items()}


def _piece(target: HFTarget, tree: TreeBuilder, span: Span, queries: Sequence[int]) -> Piece:
    first, end = span
    root = tree.tokens[0]  # replaces unreadable tokens and fills up: its keys and values are in use anyway
    readable = [token if token < target.vocabulary else root for token in tree.tokens[first:end]]
    return Piece(readable, tree.parents[:end], tree.depths[:end], first, queries, root)
