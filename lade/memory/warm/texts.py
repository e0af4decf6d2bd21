"""Texts that a model samples, and its most likely tokens after every token of them.

They show what usually follows several tokens without any data or user's text. Knows no file and caches nothing.

R texts, L tokens of each, k most likely tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from lade.core.topk import exactly_likeliest
from lade.facts.vocabulary import readable, writable

ROWS, LENGTH = 128, 256  # of the texts: about as many tokens in all as a vocabulary has
CHOICES = 16  # top-k of the sampling: rarer tokens lead to texts that hardly occur
CACHE = 1 << 31  # bytes of the KV cache, at most
LOGITS = 1 << 25  # of a forward that fills the cache with a text again: 128 MiB in float32
SEED = 0


@dataclass(frozen=True, slots=True, eq=False)
class WarmTexts:
    """Texts with predictions.

    Attributes:
        written: [R, L] int32.
        tokens: [R, L, k] int32, predictions after the text up to here, most likely first.
        probabilities: [R, L, k] float32, descending.
    """

    written: torch.Tensor
    tokens: torch.Tensor
    probabilities: torch.Tensor


Step = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""One place of r texts: the tokens there [r], the predictions [r, k] of the next ones, their probabilities [r, k]."""


@dataclass(slots=True, eq=False)
class TextsPart:
    """Partly written texts, consistent at every moment, as an interrupt may come anywhere.

    Attributes:
        whole: the arrays of `WarmTexts`, of the finished batches.
        steps: of the batch that is being written; the first `at[0]` are valid.
        at: how many steps are valid, the tokens [r, 1] that come next, the random generator's state after them.
    """

    whole: list[tuple[torch.Tensor, ...]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    at: tuple[int, torch.Tensor | None, torch.Tensor | None] = (0, None, None)

    @property
    def tokens(self) -> int:
        """How many tokens are written."""
        return sum(batch[0].numel() for batch in self.whole) + sum(len(step[0]) for step in self.steps[: self.at[0]])

    def next_batch(self, batch: tuple[torch.Tensor, ...]) -> None:
        """Add a finished batch; the next one begins with the generator's state."""
        self.whole, self.at = [*self.whole, batch], (0, None, self.at[2])
        self.steps = []


def no_texts(top: int) -> WarmTexts:
    return WarmTexts(
        torch.empty(0, 0, dtype=torch.int32), torch.empty(0, 0, top, dtype=torch.int32), torch.empty(0, 0, top)
    )


def length_for(config: Any) -> int:
    """Tokens of a text, at most the model's positions."""
    return min(LENGTH, getattr(config, "max_position_embeddings", None) or LENGTH)


def rows_for(model: Any, length: int) -> int:
    """How many texts are written side by side: their KV cache takes at most CACHE bytes."""
    config = model.config.get_text_config(decoder=True)
    most = 2 * config.num_hidden_layers * config.hidden_size * torch.finfo(model.dtype).bits // 8  # bytes of a token
    return max(1, CACHE // (most * length))


@torch.no_grad()
def write_texts(
    model: Any,
    top: int,
    rows: int,
    length: int,
    side_by_side: int,
    report: Callable[[int], object],
    part: TextsPart | None = None,
) -> WarmTexts:
    """Sample `rows` texts from the model, with a private random generator.

    A text that ends is followed by a new one in the same row. A model without a KV cache writes none.

    Args:
        model: in evaluation mode.
        top: k.
        side_by_side: texts in one forward.
        report: called after every forward, with its number of tokens.
        part: what was written earlier, with the same arguments; it is continued, and updated in place.
    """
    part = part or TextsPart()
    generator = torch.Generator(model.device).manual_seed(SEED)
    if part.at[2] is not None:
        generator.set_state(part.at[2])
    for size in batch_sizes(rows, side_by_side)[len(part.whole) :]:
        batch = _write(model, top, size, length, generator, report, part)
        if batch:
            part.next_batch(batch)
    whole = [torch.cat(parts) for parts in zip(*part.whole, strict=True)]
    return WarmTexts(*whole) if whole else no_texts(top)


def batch_sizes(rows: int, side_by_side: int) -> list[int]:
    return [min(side_by_side, rows - first) for first in range(0, rows, side_by_side)]


def _write(
    model: Any,
    top: int,
    rows: int,
    length: int,
    generator: torch.Generator,
    report: Callable[[int], object],
    part: TextsPart,
) -> tuple[torch.Tensor, ...]:
    """The arrays of `WarmTexts` for one batch; empty if the model has no KV cache."""
    start, ends = _special_tokens(model)
    first, ids, _ = part.at
    steps = part.steps = part.steps[:first]
    mask = torch.ones(rows, length, dtype=torch.long, device=model.device)
    cache = _prefill(model, torch.stack([step[0] for step in steps], dim=1), mask) if steps else None
    ids = torch.full((rows, 1), start, device=model.device) if ids is None else ids.to(model.device)
    for step in range(first, length):
        outputs = model(
            input_ids=ids, attention_mask=mask[:, : step + 1], past_key_values=cache, use_cache=True, return_dict=True
        )
        cache = getattr(outputs, "past_key_values", None)
        if cache is None:
            return ()
        logits = outputs.logits[:, -1, : readable(model)].float()
        tokens, probabilities = exactly_likeliest(logits, min(max(top, CHOICES), logits.shape[-1]))
        steps.append((ids[:, 0].int().cpu(), tokens[:, :top].int().cpu(), probabilities[:, :top].cpu()))
        ids = tokens.gather(1, torch.multinomial(probabilities[:, :CHOICES], 1, generator=generator))
        ids = torch.where((ids == ends).any(1, keepdim=True), start, ids)
        part.at = (len(steps), ids, generator.get_state())
        report(rows)
    return tuple(torch.stack(part, dim=1) for part in zip(*steps, strict=True))


def _prefill(model: Any, texts: torch.Tensor, mask: torch.Tensor) -> Any:
    """The KV cache of texts [r, s] that were written earlier, filled chunk by chunk."""
    places = max(1, LOGITS // (len(texts) * writable(model)))
    cache = None
    for ids in torch.split(texts.long().to(model.device), places, dim=1):
        length = ids.shape[1] + (0 if cache is None else cache.get_seq_length())
        outputs = model(
            input_ids=ids, attention_mask=mask[:, :length], past_key_values=cache, use_cache=True, return_dict=True
        )
        cache = outputs.past_key_values
    return cache


def _special_tokens(model: Any) -> tuple[int, torch.Tensor]:
    """The token that begins a text, 0 if the model has none, and those that end one."""
    configs = [getattr(model, "generation_config", None), model.config.get_text_config(decoder=True)]
    begins, ends = (
        next((value for config in configs if (value := getattr(config, name, None)) is not None), None)
        for name in ("bos_token_id", "eos_token_id")
    )
    ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
    return begins if begins is not None else next(iter(ends), 0), torch.tensor(ends, device=model.device)
