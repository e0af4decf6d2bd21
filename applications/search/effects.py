"""How much each sub-layer matters alone: the loss of the model's own next-token distribution without it.

Knows models; no search and no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lade.base.shown import invalid
from lade.models.families import refusal
from lade.target.skipping import Skipping, decoder_layers
from lade.target.skipset import SkipSet


@torch.no_grad()
def effects(model: Any, texts: Sequence[torch.Tensor]) -> dict[tuple[str, int], float]:
    """Kullback-Leibler divergence of the model without a sub-layer from the whole model, in nats per token.

    Args:
        texts: [1, length] token ids each.

    Returns:
        The mean over all tokens for each of `sub_layers`.
    """
    whole = [_log_probabilities(model, ids) for ids in texts]
    found = {}
    for kind, layer in sub_layers(model):
        with Skipping(model, SkipSet(**{kind: (layer,)})).applied():
            found[kind, layer] = _divergence(model, texts, whole)
    return found


def check(model: Any) -> None:
    """ValueError where the model cannot verify drafts, or its sub-layers cannot be skipped."""
    reason = refusal(model)
    if reason is not None:
        raise invalid("model", f"one that can verify a draft tree ({reason})", model)
    for kind, layer in sub_layers(model):
        Skipping(model, SkipSet(**{kind: (layer,)}))


def sub_layers(model: Any) -> list[tuple[str, int]]:
    """("attention" or "mlp", layer) of all that may be left out; no attention if layers share keys and values."""
    shared = getattr(model.config.get_text_config(decoder=True), "num_kv_shared_layers", 0)
    kinds = ("mlp",) if shared else ("attention", "mlp")
    return [(kind, layer) for kind in kinds for layer in range(len(decoder_layers(model)))]


def _log_probabilities(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """[length, V] log-probabilities of the next token."""
    return model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)


def _divergence(model: Any, texts: Sequence[torch.Tensor], whole: Sequence[torch.Tensor]) -> float:
    divergences = [
        (logs.exp() * (logs - _log_probabilities(model, ids).clamp(min=-1e4))).nan_to_num().sum(-1)
        for ids, logs in zip(texts, whole, strict=True)
    ]
    return max(0.0, torch.cat(divergences).mean().item())
