"""The attention implementation "lade", for models that are loaded with it: `lade.kernels`, prefill included.

It follows transformers' contract of attention functions, soft caps and sinks included. Its masks are those of "sdpa";
where the model needs none, causal attention is one launch of the kernel, if that runs on the device. Registered by
`install`, and by loading a model with `lade.models.load`; removed by `remove`. Knows no model.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

from lade.kernels import available
from lade.kernels.batches import causal, fits
from lade.kernels.rows import Rules, scale_of
from lade.target.definition import dense

NAME = "lade"


def install() -> None:
    """Let models be loaded with `attn_implementation="lade"`, and those that are compute."""
    AttentionInterface._global_mapping.setdefault(NAME, attention)
    AttentionMaskInterface._global_mapping.setdefault(NAME, sdpa_mask)


def remove() -> None:
    """Undo `install`."""
    for mapping, ours in (
        (AttentionInterface._global_mapping, attention),
        (AttentionMaskInterface._global_mapping, sdpa_mask),
    ):
        if mapping.get(NAME) is ours:
            del mapping[NAME]


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """[B, T, G * H, E] and no weights, as transformers' attention functions."""
    rules = Rules(scale_of(query, scaling), cap=softcap, sinks=s_aux)
    tokens, keys = query.shape[2], key.shape[2]
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    plain = attention_mask is None and not dropout and others.get("position_bias") is None
    if plain and (is_causal or tokens == 1) and tokens <= keys and _runs(query, key, value):
        return causal(query, key, value, rules), None
    if softcap is None and s_aux is None:
        others |= {"dropout": dropout, "scaling": scaling, "is_causal": is_causal}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **others)
    if attention_mask is None and is_causal and tokens > 1:
        attention_mask = torch.ones(1, 1, tokens, keys, dtype=torch.bool, device=query.device).tril(keys - tokens)
    return dense(query, key, value, attention_mask, rules), None


def _runs(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    gradients = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    return not gradients and available.runs(query.device) and fits(query, key, value)
