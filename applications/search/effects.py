"""How much each sub-layer matters by itself: what leaving it out does to a text that the whole model would write.

Knows models; nothing of searches and clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lade.target.skipping import Skipping, decoder_layers
from lade.target.skipset import SkipSet


@torch.no_grad()
def effects(model: Any, texts: Sequence[torch.Tensor]) -> dict[tuple[str, int], float]:
    """Nats per token by which the model's own choices lose where a sub-layer is left out.

    Args:
        texts: [1, length] token ids each.

    Returns:
        The mean loss of each of `sub_layers`.
    """
    whole = [_laws(model, ids) for ids in texts]
    found = {}
    for kind, layer in sub_layers(model):
        with Skipping(model, SkipSet(**{kind: (layer,)})).applied():
            found[kind, layer] = _loss(model, texts, whole)
    return found


def sub_layers(model: Any) -> list[tuple[str, int]]:
    """What may be left out: ("attention" or "mlp", layer); no attention where layers share keys and values."""
    shared = getattr(model.config.get_text_config(decoder=True), "num_kv_shared_layers", 0)
    kinds = ("mlp",) if shared else ("attention", "mlp")
    return [(kind, layer) for kind in kinds for layer in range(len(decoder_layers(model)))]


def _laws(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """[length, V] log-probabilities of the next token."""
    return model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)


def _loss(model: Any, texts: Sequence[torch.Tensor], whole: Sequence[torch.Tensor]) -> float:
    lost = [
        (law.exp() * (law - _laws(model, ids).clamp(min=-1e4))).nan_to_num().sum(-1)
        for ids, law in zip(texts, whole, strict=True)
    ]
    return max(0.0, torch.cat(lost).mean().item())
