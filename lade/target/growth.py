"""Trees that grow over several forwards of a step, as a drafting model needs: each one computes the newest nodes.

What was computed stands behind the row's tokens, in the order of the nodes, until the step's path is kept or the next
forward writes over it. Knows targets and trees, nothing about choosing tokens.

n rows, T new nodes of a row (padded), C nodes of its tree up to these (padded).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from transformers import GenerationConfig

from lade.core.tree import TreeBuilder, ancestor_matrix
from lade.target.masks import Block
from lade.target.model import HFTarget

Span = tuple[int, int]  # nodes that a forward computes: from the first on, the second one left out


def prefill_texts(target: HFTarget, texts: Sequence[Sequence[int]]) -> None:
    """Prefill all but each text's last token, which is the first root; texts may differ in length."""
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


def grow(target: HFTarget, trees: Sequence[TreeBuilder], spans: Sequence[Span], queries: Sequence[int]) -> torch.Tensor:
    """Compute the newest nodes of the trees in the first n rows.

    Args:
        trees: row i's tree; its root's parent is the last token kept.
        spans: which nodes of each; those before have been computed in this step, those behind are left out. A row whose
            span is empty goes along without a node.
        queries: whose logits are wanted, counted from the beginning of the spans.

    Returns:
        [n, len(queries), V] logits.
    """
    nodes = max(1, max(end - first for first, end in spans))
    columns = max(first for first, _ in spans) + nodes
    begun = any(first for first, _ in spans)
    target.cache.prepare(len(spans), columns, [first for first, _ in spans] if begun else None)
    inputs = _inputs(target, trees, spans, nodes, columns)
    if target.slices_logits:
        inputs["logits_to_keep"] = torch.tensor(queries, device=target.device)
    with target.experts_for(nodes * len(spans)):
        logits: torch.Tensor = target.model(**inputs).logits
    return logits if target.slices_logits else logits[:, list(queries)]


def _inputs(
    target: HFTarget, trees: Sequence[TreeBuilder], spans: Sequence[Span], nodes: int, columns: int
) -> dict[str, object]:
    tokens, own, depths, visible = [], [], [], []
    for tree, (first, end) in zip(trees, spans, strict=True):
        padding = [0] * (nodes - end + first)
        root = tree.tokens[0]  # stands for what cannot be read, as it is surely harmless
        readable = [token if token < target.vocabulary else root for token in tree.tokens[first:end]]
        tokens.append(readable + [root] * len(padding))
        own.append(tree.depths[first:end] + padding)
        depths.append(tree.depths[:end] + [0] * (columns - end))
        visible.append(_ancestors(tuple(tree.parents[:end]), columns)[first : first + nodes])
    positions = [[root + depth for depth in row] for root, row in zip(target.positions, own, strict=False)]
    block = Block(torch.stack(visible).to(target.device), depths, max(map(max, depths)), own)
    return target.inputs(tokens, positions, block)


@lru_cache(maxsize=1024)  # drafts of one method are much alike
def _ancestors(parents: tuple[int, ...], size: int) -> torch.Tensor:
    return ancestor_matrix(list(parents), size)
