"""The rank of every token of a model's greedy texts under a draft model. Knows models, no search and no clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def ranks_of(
    model: PreTrainedModel, draft: PreTrainedModel, prompt: Sequence[int], arguments: dict[str, Any]
) -> list[int]:
    """Decode a prompt plainly, and rank every new token after the first.

    Returns:
        How many tokens the draft model finds likelier, given the text before; its whole vocabulary for a token that
        it does not have.
    """
    ids = torch.tensor([list(prompt)], device=model.device)
    text = model.generate(ids, attention_mask=torch.ones_like(ids), **arguments)[0].to(draft.device)
    new = text[len(prompt) + 1 :]
    if not len(new):
        return []
    logits = draft(input_ids=text[None, :-1], use_cache=False).logits[0, -len(new) :].float()  # [T, V]
    known = new < logits.shape[-1]
    own = logits.gather(1, new.clamp(max=logits.shape[-1] - 1)[:, None])
    likelier = (logits > own).sum(-1)
    return list(torch.where(known, likelier, logits.shape[-1]).tolist())
