"""Texts that a model writes to itself, and what it finds most likely after every token of them.

No data and no user's text is needed for what usually follows several tokens: the model says it along its own samples.
Knows no file and remembers no model.

R texts, L tokens of each, k likeliest tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from lade.core.topk import exactly_likeliest
from lade.facts.vocabulary import readable, writable

ROWS, LENGTH = 128, 256  # of the texts: about as many tokens as a vocabulary has
CHOICES = 16  # the next token is drawn from so many: what is rarer leads to texts that hardly anyone asks for
CACHE = 1 << 31  # bytes of keys and values, at most
LOGITS = 1 << 25  # of a forward that reads a text again: 128 MiB in float32
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


Step = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Of texts side by side: the tokens at one place [r], and what comes next [r, k], its probabilities [r, k]."""


@dataclass(slots=True, eq=False)
class TextsPart:
    """Texts that are not all written yet. It is whole at every moment: an interrupt may come anywhere.

    Attributes:
        whole: what `WarmTexts` holds, of the batches that ended.
        steps: of the batch that is being written; the first `at[0]` of them count.
        at: how many steps there are, the tokens [r, 1] that come next, the random generator's state behind them.
    """

    whole: list[tuple[torch.Tensor, ...]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    at: tuple[int, torch.Tensor | None, torch.Tensor | None] = (0, None, None)

    @property
    def tokens(self) -> int:
        """How many are written."""
        return sum(batch[0].numel() for batch in self.whole) + sum(len(step[0]) for step in self.steps[: self.at[0]])

    def next_batch(self, batch: tuple[torch.Tensor, ...]) -> None:
        """`batch` ended; the next one begins where the generator stands."""
        self.whole, self.at = [*self.whole, batch], (0, None, self.at[2])
        self.steps = []


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
    model: Any,
    top: int,
    rows: int,
    length: int,
    side_by_side: int,
    written: Callable[[int], object],
    part: TextsPart | None = None,
) -> WarmTexts:
    """Let the model write `rows` texts, from a private random generator.

    A text that ends makes room for a new one. A model that remembers nothing between forwards writes none. Where a
    part is given, it goes on behind it, and is kept up to date.

    Args:
        model: in evaluation mode.
        top: k.
        side_by_side: texts in one forward.
        written: told how many tokens one more forward had.
    """
    part = part or TextsPart()
    generator = torch.Generator(model.device).manual_seed(SEED)
    if part.at[2] is not None:
        generator.set_state(part.at[2])
    for size in batch_sizes(rows, side_by_side)[len(part.whole) :]:
        batch = _write(model, top, size, length, generator, written, part)
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
    written: Callable[[int], object],
    part: TextsPart,
) -> tuple[torch.Tensor, ...]:
    """What `WarmTexts` holds, of texts written side by side; nothing where the model has no cache."""
    start, ends = _marks(model)
    first, ids, _ = part.at
    steps = part.steps = part.steps[:first]
    seen = torch.ones(rows, length, dtype=torch.long, device=model.device)
    cache = _read(model, torch.stack([step[0] for step in steps], dim=1), seen) if steps else None
    ids = torch.full((rows, 1), start, device=model.device) if ids is None else ids.to(model.device)
    for step in range(first, length):
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
        ids = torch.where((ids == ends).any(1, keepdim=True), start, ids)
        part.at = (len(steps), ids, generator.get_state())
        written(rows)
    return tuple(torch.stack(part, dim=1) for part in zip(*steps, strict=True))


def _read(model: Any, texts: torch.Tensor, seen: torch.Tensor) -> Any:
    """The cache behind texts [r, s] that were written earlier, a few places in a forward."""
    places = max(1, LOGITS // (len(texts) * writable(model)))
    cache = None
    for ids in torch.split(texts.long().to(model.device), places, dim=1):
        behind = ids.shape[1] + (0 if cache is None else cache.get_seq_length())
        mask = seen[:, :behind]
        outputs = model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, return_dict=True)
        cache = outputs.past_key_values
    return cache


def _marks(model: Any) -> tuple[int, torch.Tensor]:
    """The token that begins a text, and those that end one; 0 begins where nothing does."""
    configs = [getattr(model, "generation_config", None), model.config.get_text_config(decoder=True)]
    begins, ends = (
        next((value for config in configs if (value := getattr(config, name, None)) is not None), None)
        for name in ("bos_token_id", "eos_token_id")
    )
    ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
    return begins if begins is not None else next(iter(ends), 0), torch.tensor(ends, device=model.device)
