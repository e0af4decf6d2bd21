"""Trees that a drafting model grows over several forwards of a step, each of which computes the newest nodes.

Keys and values of nodes are stored behind the row's tokens, in node order, until the step keeps a path. Knows targets
and trees, nothing of choosing tokens.

n rows, T new nodes per row (padded), C nodes per row up to the newest (padded).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from transformers import GenerationConfig

from lade.core.tree import TreeBuilder, ancestor_matrix
from lade.target.masks import Block
from lade.target.model import HFTarget

Span = tuple[int, int]  # nodes that a forward computes: first, end (exclusive)


def prefill_texts(target: HFTarget, texts: Sequence[Sequence[int]]) -> None:
    """Prefill all tokens of each text but the last, which is the first root; texts may differ in length."""
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
    target.prefill(ids, GenerationConfig(), inputs)


def grow(
    target: HFTarget,
    slots: Sequence[int],
    trees: Sequence[TreeBuilder],
    spans: Sequence[Span],
    queries: Sequence[int],
) -> torch.Tensor:
    """Compute the newest nodes of trees in some slots.

    Args:
        slots: one per tree.
        trees: the root follows the slot's last cached token.
        spans: the nodes to compute per tree; earlier ones were computed in this step. A span may be empty.
        queries: nodes whose logits are returned, as offsets from the start of the spans.

    Returns:
        [n, len(queries), V] logits.
    """
    nodes = max(1, max(end - first for first, end in spans))
    columns = max(first for first, _ in spans) + nodes
    begun = any(first for first, _ in spans)
    target.prepare(slots, columns, [first for first, _ in spans] if begun else None)
    inputs = _inputs(target, slots, trees, spans, nodes, columns)
    if target.slices_logits:
        inputs["logits_to_keep"] = torch.tensor(queries, device=target.device)
    with target.experts_for(nodes * len(spans)):
        logits: torch.Tensor = target.model(**inputs).logits
    return logits if target.slices_logits else logits[:, list(queries)]


def _inputs(
    target: HFTarget,
    slots: Sequence[int],
    trees: Sequence[TreeBuilder],
    spans: Sequence[Span],
    nodes: int,
    columns: int,
) -> dict[str, object]:
    tokens, own, depths, visible = [], [], [], []
    for tree, (first, end) in zip(trees, spans, strict=True):
        padding = [0] * (nodes - end + first)
        root = tree.tokens[0]  # replaces unreadable tokens and fills up: its keys and values are in use anyway
        readable = [token if token < target.vocabulary else root for token in tree.tokens[first:end]]
        tokens.append(readable + [root] * len(padding))
        own.append(tree.depths[first:end] + padding)
        depths.append(tree.depths[:end] + [0] * (columns - end))
        visible.append(_ancestors(tuple(tree.parents[:end]), columns)[first : first + nodes])
    positions = [[target.positions[slot] + depth for depth in row] for slot, row in zip(slots, own, strict=True)]
    block = Block(torch.stack(visible).to(target.device), depths, max(map(max, depths)), own)
    return target.inputs(tokens, positions, block)


@lru_cache(maxsize=1024)  # trees of one method are often equal
def _ancestors(parents: tuple[int, ...], size: int) -> torch.Tensor:
    return ancestor_matrix(list(parents), size)
