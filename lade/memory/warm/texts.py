"""Texts that a model samples, and its most likely tokens after every token of them.

They show what usually follows several tokens without any data or user's text. Knows no file and caches nothing.

R texts, L tokens of each, k most likely tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from lade.memory.warm.predictions import likeliest_by_block
from lade.memory.warm.reader import Reader
from lade.memory.warm.turns import Turns, TurnState, temperatures

ROWS, LENGTH = 128, 256  # of the texts: about as many tokens in all as a vocabulary has
CHATS = 2  # a chat model writes so many times more texts, as many times shorter: they have more topics
SIDE_BY_SIDE = 128  # texts in one forward, at most
LARGE = 1 << 25  # parameters from which on it is half of that: the first texts are finished in half of the time
CHOICES = 16  # top-k of the sampling: rarer tokens lead to texts that hardly occur
TEMPERATURES = (0.5, 1.0)  # of the answers of a chat model; messages, and texts of other models, have 1
CACHE = 1 << 31  # bytes of the KV cache, at most
SEED = 0


@dataclass(frozen=True, slots=True, eq=False)
class WarmTexts:
    """Texts with predictions.

    Attributes:
        written: [R, L] int32.
        tokens: [R, L, k] int32, predictions after the text up to here, most likely first.
        probabilities: [R, L, k] float32, descending.
        counted: [R, L] bool, whether the model chose the token after this place; the others are fixed by a template.
    """

    written: torch.Tensor
    tokens: torch.Tensor
    probabilities: torch.Tensor
    counted: torch.Tensor


Step = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""One place of r texts: the tokens there [r], the predictions [r, k] of the next ones, their probabilities [r, k], and
whether they count [r]."""

At = tuple[int, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


@dataclass(slots=True, eq=False)
class TextsPart:
    """Partly written texts, consistent at every moment, as an interrupt may come anywhere.

    Attributes:
        whole: the arrays of `WarmTexts`, of the finished batches.
        steps: of the batch that is being written; the first `at[0]` are valid.
        at: how many steps are valid, the tokens [r, 1] that come next, the random generator's state after them, and
            the texts' `TurnState`.
    """

    whole: list[tuple[torch.Tensor, ...]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    at: At = (0, None, None, None)

    @property
    def tokens(self) -> int:
        """How many tokens are written."""
        return sum(batch[0].numel() for batch in self.whole) + sum(len(step[0]) for step in self.steps[: self.at[0]])

    def next_batch(self, batch: tuple[torch.Tensor, ...]) -> None:
        """Add a finished batch; the next one begins with the generator's state."""
        self.whole, self.at = [*self.whole, batch], (0, None, self.at[2], None)
        self.steps = []

    def texts(self, top: int) -> WarmTexts:
        """The finished batches."""
        if not self.whole:
            return no_texts(top)
        return WarmTexts(*(torch.cat(parts) for parts in zip(*self.whole, strict=True)))


def no_texts(top: int) -> WarmTexts:
    return WarmTexts(
        torch.empty(0, 0, dtype=torch.int32),
        torch.empty(0, 0, top, dtype=torch.int32),
        torch.empty(0, 0, top),
        torch.empty(0, 0, dtype=torch.bool),
    )


def shape_for(config: Any, turns: Turns) -> tuple[int, int]:
    """How many texts, and the tokens of each: with its head at most as many as the model has positions."""
    times = CHATS if turns.middle else 1
    most = (getattr(config, "max_position_embeddings", None) or LENGTH + len(turns.head)) - len(turns.head) + 1
    return ROWS * times, max(1, min(LENGTH // times, most))


def rows_for(model: Any, length: int) -> int:
    """How many texts are written side by side: their KV cache takes at most CACHE bytes."""
    config = model.config.get_text_config(decoder=True)
    most = 2 * config.num_hidden_layers * config.hidden_size * torch.finfo(model.dtype).bits // 8  # bytes of a token
    large = sum(parameter.numel() for parameter in model.parameters()) >= LARGE
    return max(1, min(SIDE_BY_SIDE // 2 if large else SIDE_BY_SIDE, CACHE // (most * length)))


@dataclass(frozen=True, slots=True)
class TextPlan:
    """How texts are written: `rows` of `length` tokens, some side by side, with the `top` predictions at each place."""

    top: int
    rows: int
    length: int
    side_by_side: int
    turns: Turns

    @property
    def batches(self) -> list[int]:
        """Texts in each batch."""
        firsts = range(0, self.rows, self.side_by_side)
        return [min(self.side_by_side, self.rows - first) for first in firsts]


@torch.no_grad()
def write_texts(
    model: Any, plan: TextPlan, report: Callable[[int], object], part: TextsPart, batches: int | None = None
) -> None:
    """Sample texts from the model, with a private random generator.

    A text that ends is followed by a new one in the same row. A model without a KV cache writes none.

    Args:
        model: in evaluation mode.
        report: called after every forward, with its number of tokens.
        part: what was written earlier by the same plan; it is continued, and updated in place.
        batches: stop when so many are finished; default: all.
    """
    generator = torch.Generator(model.device).manual_seed(SEED)
    if part.at[2] is not None:
        generator.set_state(part.at[2])
    for size in plan.batches[len(part.whole) : batches]:
        batch = _write(model, plan, size, generator, report, part)
        if batch:
            part.next_batch(batch)


def _write(
    model: Any, plan: TextPlan, rows: int, generator: torch.Generator, report: Callable[[int], object], part: TextsPart
) -> tuple[torch.Tensor, ...]:
    """The arrays of `WarmTexts` for one batch; empty if the model has no KV cache."""
    first, following, _, state = part.at
    steps = part.steps = part.steps[:first]
    turns = TurnState(plan.turns, rows, model.device, state)
    scale = 1 / temperatures(rows, TEMPERATURES, model.device) if plan.turns.middle else 1.0
    reader, ids = _begin(model, plan, rows, steps, following)
    for _ in range(first, plan.length):
        logits = reader.read(ids)
        if logits is None:
            return ()
        tokens, probabilities = likeliest_by_block(logits, min(max(plan.top, CHOICES), logits.shape[1]))
        said, likely = tokens[:, : plan.top].int().cpu(), probabilities[:, : plan.top].cpu()
        steps.append((ids[:, -1].int().cpu(), said, likely, turns.chooses.cpu()))
        ids = turns.follow(_sampled(tokens, probabilities, scale, turns.state[1:2].T, generator))[:, None]
        part.at = (len(steps), ids, generator.get_state(), turns.state)
        report(rows)
    return tuple(torch.stack(part, dim=1) for part in zip(*steps, strict=True))


def _begin(
    model: Any, plan: TextPlan, rows: int, steps: list[Step], following: torch.Tensor | None
) -> tuple[Reader, torch.Tensor]:
    """A reader that has read what is known already; the [r, n] tokens to be read next."""
    head = torch.tensor([plan.turns.head], device=model.device)  # [1, h]
    reader, ids = Reader(model, rows, head.shape[1] - 1 + plan.length), head.expand(rows, -1)
    if reader.cache is not None and ids.shape[1] > 1:
        reader.read(head[:, :-1])
        reader.cache.share()
        ids = ids[:, -1:]
    if not steps or following is None:
        return reader, ids
    written = torch.stack([step[0] for step in steps], dim=1).long().to(ids.device)
    reader.read_in_parts(torch.cat([ids[:, :-1], written], dim=1))
    return reader, following.to(ids.device)


def _sampled(
    tokens: torch.Tensor, probabilities: torch.Tensor, scale: Any, answers: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """[r] one of the CHOICES likeliest tokens of each row.

    Args:
        scale: [r, 1] inverse temperatures of answers, or 1.
        answers: [r, 1] whether an answer is being written.
    """
    likely = probabilities[:, :CHOICES]
    likely = torch.where(answers > 0, (likely / likely[:, :1]) ** scale, likely)
    return tokens.gather(1, torch.multinomial(likely, 1, generator=generator))[:, 0]
