"""Mean log-likelihood of a text under a model. Knows no decoding."""

from __future__ import annotations

from typing import Any

import torch


@torch.no_grad()
def mean_log_likelihood(model: Any, prompt: torch.Tensor, continuation: torch.Tensor) -> float:
    """Mean over the continuation's tokens of log p(token | prompt, the tokens before it), in nats; at most 0.

    exp of its negative is the perplexity. One forward without a cache; log-probabilities in float32, or float64 for a
    model in it.

    Args:
        model: a causal language model of transformers, in eval mode; no logits processors are applied.
        prompt: [P] token ids, at least one.
        continuation: [T] token ids, at least one.

    Raises:
        ValueError: an argument is wrong.
    """
    size = int(model.config.get_text_config(decoder=True).vocab_size)
    for name, ids in (("prompt", prompt), ("continuation", continuation)):
        if ids.dim() != 1 or not len(ids) or ids.is_floating_point():
            raise ValueError(
                f"{name} must be a 1-D tensor of at least one token id, got {ids.dtype} of shape {tuple(ids.shape)}"
            )
        if int(ids.min()) < 0 or int(ids.max()) >= size:
            found = f"{int(ids.min())} to {int(ids.max())}"
            raise ValueError(f"{name} must hold token ids from 0 to {size - 1}, got {found}")
    if model.training:
        raise ValueError("model must be in eval mode (model.eval()), got one in training mode")
    text = torch.cat([prompt, continuation.to(prompt.device)]).to(model.device)
    kept = len(continuation) + 1
    wanted = {"logits_to_keep": kept} if model._supports_logits_to_keep() else {}
    logits = model(input_ids=text[None], use_cache=False, return_dict=True, **wanted).logits[0, -kept:-1]  # [T, V]
    chosen = text[-len(continuation) :].to(logits.device)
    logs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    return float(logs.gather(1, chosen[:, None]).mean())
