"""Texts that a model writes to itself, and what it finds most likely after every token of them.

No data and no user's text is needed for what usually follows several tokens: the model says it along its own samples.
Knows no file and remembers no model.

R texts, L tokens of each, k likeliest tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lade.topk import exactly_likeliest

ROWS, LENGTH = 128, 256  # of the texts: about as many tokens as a vocabulary has
CHOICES = 16  # the next token is drawn from so many: what is rarer leads to texts that hardly anyone asks for
SEED = 0


@dataclass(frozen=True, slots=True, eq=False)
class WarmTexts:
    """What a model wrote.

    Attributes:
        written: [R, L] int32.
        tokens: [R, L, k] int32, the most likely ones after the text up to here, most likely first.
        probabilities: [R, L, k] float32, descending.
    """

    written: torch.Tensor
    tokens: torch.Tensor
    probabilities: torch.Tensor


def no_texts(top: int) -> WarmTexts:
    return WarmTexts(
        torch.empty(0, 0, dtype=torch.int32), torch.empty(0, 0, top, dtype=torch.int32), torch.empty(0, 0, top)
    )


def length_for(config: Any) -> int:
    """Tokens of a text: no more than the model has positions for."""
    return min(LENGTH, getattr(config, "max_position_embeddings", None) or LENGTH)


@torch.no_grad()
def write_texts(model: Any, top: int, rows: int, length: int, written: Callable[[], object]) -> WarmTexts:
    """Let the model write `rows` texts side by side, from a private random generator.

    A text that ends makes room for a new one. A model that remembers nothing between forwards writes none.

    Args:
        model: in evaluation mode.
        top: k.
        written: called after every token of the texts.
    """
    generator = torch.Generator(model.device).manual_seed(SEED)
    start, ends = _marks(model)
    ids = torch.full((rows, 1), start, device=model.device)
    seen, steps, cache = torch.ones(rows, length, dtype=torch.long, device=model.device), [], None
    for step in range(length):
        outputs = model(
            input_ids=ids, attention_mask=seen[:, : step + 1], past_key_values=cache, use_cache=True, return_dict=True
        )
        cache = getattr(outputs, "past_key_values", None)
        if cache is None:
            return no_texts(top)
        logits = outputs.logits[:, -1].float()
        tokens, probabilities = exactly_likeliest(logits, min(max(top, CHOICES), logits.shape[-1]))
        steps.append((ids[:, 0].int().cpu(), tokens[:, :top].int().cpu(), probabilities[:, :top].cpu()))
        ids = tokens.gather(1, torch.multinomial(probabilities[:, :CHOICES], 1, generator=generator))
        ids = torch.where(torch.isin(ids, ends), start, ids)
        written()
    return WarmTexts(*(torch.stack(part, dim=1).contiguous() for part in zip(*steps, strict=True)))


def _marks(model: Any) -> tuple[int, torch.Tensor]:
    """The token that begins a text, and those that end one; 0 begins where nothing does."""
    configs = [getattr(model, "generation_config", None), model.config.get_text_config(decoder=True)]
    begins, ends = (
        next((value for config in configs if (value := getattr(config, name, None)) is not None), None)
        for name in ("bos_token_id", "eos_token_id")
    )
    ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
    return begins if begins is not None else next(iter(ends), 0), torch.tensor(ends, device=model.device)
