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
from lade.vocabulary import readable

ROWS, LENGTH = 128, 256  # of the texts: about as many tokens as a vocabulary has
CHOICES = 16  # the next token is drawn from so many: what is rarer leads to texts that hardly anyone asks for
CACHE = 1 << 31  # bytes of keys and values, at most
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


def rows_for(model: Any, length: int) -> int:
    """How many texts are written side by side: as many as certainly keep the cache of their keys and values small."""
    config = model.config.get_text_config(decoder=True)
    most = 2 * config.num_hidden_layers * config.hidden_size * torch.finfo(model.dtype).bits // 8  # bytes of a token
    return max(1, CACHE // (most * length))


@torch.no_grad()
def write_texts(
    model: Any, top: int, rows: int, length: int, side_by_side: int, written: Callable[[int], object]
) -> WarmTexts:
    """Let the model write `rows` texts, from a private random generator.

    A text that ends makes room for a new one. A model that remembers nothing between forwards writes none.

    Args:
        model: in evaluation mode.
        top: k.
        side_by_side: texts in one forward.
        written: told how many tokens one more forward had.
    """
    generator = torch.Generator(model.device).manual_seed(SEED)
    sizes = [min(side_by_side, rows - first) for first in range(0, rows, side_by_side)]
    batches = [_write(model, top, size, length, generator, written) for size in sizes]
    whole = [torch.cat(parts) for parts in zip(*(batch for batch in batches if batch), strict=True)]
    return WarmTexts(*whole) if whole else no_texts(top)


def _write(
    model: Any, top: int, rows: int, length: int, generator: torch.Generator, written: Callable[[int], object]
) -> tuple[torch.Tensor, ...]:
    """What `WarmTexts` holds, of texts written side by side; nothing where the model has no cache."""
    start, ends = _marks(model)
    ids = torch.full((rows, 1), start, device=model.device)
    seen, steps, cache = torch.ones(rows, length, dtype=torch.long, device=model.device), [], None
    for step in range(length):
        outputs = model(
            input_ids=ids, attention_mask=seen[:, : step + 1], past_key_values=cache, use_cache=True, return_dict=True
        )
        cache = getattr(outputs, "past_key_values", None)
        if cache is None:
            return ()
        logits = outputs.logits[:, -1, : readable(model)].float()
        tokens, probabilities = exactly_likeliest(logits, min(max(top, CHOICES), logits.shape[-1]))
        steps.append((ids[:, 0].int().cpu(), tokens[:, :top].int().cpu(), probabilities[:, :top].cpu()))
        ids = tokens.gather(1, torch.multinomial(probabilities[:, :CHOICES], 1, generator=generator))
        ids = torch.where(torch.isin(ids, ends), start, ids)
        written(rows)
    return tuple(torch.stack(part, dim=1) for part in zip(*steps, strict=True))


def _marks(model: Any) -> tuple[int, torch.Tensor]:
    """The token that begins a text, and those that end one; 0 begins where nothing does."""
    configs = [getattr(model, "generation_config", None), model.config.get_text_config(decoder=True)]
    begins, ends = (
        next((value for config in configs if (value := getattr(config, name, None)) is not None), None)
        for name in ("bos_token_id", "eos_token_id")
    )
    ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
    return begins if begins is not None else next(iter(ends), 0), torch.tensor(ends, device=model.device)
