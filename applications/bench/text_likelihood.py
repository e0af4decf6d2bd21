"""The log-likelihood of a text under a reference model. Knows no method and no prompt."""

import math
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from lade.facts.positions import position_limit
from lade.measure.likelihood import mean_log_likelihood


def log_likelihood(model: PreTrainedModel, prompt: Sequence[int], text: Sequence[int]) -> float | None:
    """Mean over the text's tokens, in nats; None for no tokens, too many, or ids that the model does not have."""
    config = model.config.get_text_config(decoder=True)
    limit, tokens = position_limit(config), [*prompt, *text]
    if not text or max(tokens) >= config.vocab_size or (limit is not None and len(tokens) > limit):
        return None
    found = mean_log_likelihood(model, torch.tensor(prompt), torch.tensor(text))
    return found if math.isfinite(found) else None
