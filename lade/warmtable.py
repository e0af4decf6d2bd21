"""The warm table: the tokens that a model finds most likely after every vocabulary entry alone and along texts of its
own, and computing it.

Knows no file and remembers no model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from lade.config import check_integer
from lade.topk import exactly_likeliest
from lade.vocabulary import readable
from lade.warmcontexts import WarmContexts, smoothed
from lade.warmtexts import ROWS, length_for, rows_for, write_texts

LOGITS = 1 << 25  # of a batch: 128 MiB in float32
MOST_ROWS = 4096  # of a batch
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, eq=False)
class WarmTable:
    """The model's most likely next tokens after each token alone, and after longer contexts from texts of its own.

    Attributes:
        tokens: [V, k] int32, most likely first.
        probabilities: [V, k] float32, descending.
        contexts: what it expects after endings of texts that it wrote.
        seconds: what computing it cost.
    """

    tokens: torch.Tensor
    probabilities: torch.Tensor
    contexts: WarmContexts
    seconds: float
    _entries: dict[int, tuple[list[int], list[float]]] = field(default_factory=dict, init=False, repr=False)

    @property
    def kept(self) -> int:
        """Tokens per entry: a table with more serves whoever asks for fewer."""
        return self.tokens.shape[1]

    def entry(self, token: int) -> tuple[list[int], list[float]]:
        """Tokens and probabilities after `token`, nothing for one outside the vocabulary; not to be changed."""
        found = self._entries.get(token)
        if found is None:
            inside = 0 <= token < len(self.tokens)
            found = (self.tokens[token].tolist(), self.probabilities[token].tolist()) if inside else ([], [])
            self._entries[token] = found
        return found


@torch.no_grad()
def compute(model: Any, top: int = 16, batch_tokens: int | None = None, progress: Progress | None = None) -> WarmTable:
    """Ask the model for the `top` tokens after every vocabulary entry alone, and along texts that it writes.

    Args:
        batch_tokens: entries in one forward; default: as many as keep the logits small.
        progress: called with how many tokens went through the model, and of how many.

    Raises:
        ValueError: names the argument.
    """
    check(model, top)
    size = readable(model)
    entries = max(1, min(LOGITS // size, MOST_ROWS)) if batch_tokens is None else batch_tokens
    check_integer("batch_tokens", entries, "an integer of at least 1", lambda value: value >= 1)
    length = length_for(model.config.get_text_config(decoder=True))
    side_by_side = min(entries, rows_for(model, length))
    start = time.perf_counter()
    told = _Told(progress, size + ROWS * length)
    with _evaluating(model):
        tokens, probabilities = _entries(model, size, top, entries, told)
        texts = write_texts(model, top, ROWS, length, side_by_side, told.more)
    contexts = smoothed(texts, tokens, probabilities)
    return WarmTable(tokens, probabilities, contexts, time.perf_counter() - start)


@dataclass(slots=True)
class _Told:
    """Says how far things are."""

    progress: Progress | None
    total: int
    done: int = 0

    def more(self, tokens: int) -> None:
        self.done += tokens
        if self.progress is not None:
            self.progress(self.done, self.total)


def _entries(model: Any, size: int, top: int, rows: int, told: _Told) -> tuple[torch.Tensor, torch.Tensor]:
    """[V, top] tokens and probabilities after each vocabulary entry, `rows` of them in a forward."""
    tokens = torch.empty(size, top, dtype=torch.int32)
    probabilities = torch.empty(size, top)
    for first in range(0, size, rows):
        last = min(first + rows, size)
        ids = torch.arange(first, last, device=model.device)[:, None]  # [rows, 1]
        indices, best = _best(model, ids, top)
        tokens[first:last], probabilities[first:last] = indices.to("cpu", torch.int32), best.cpu()
        told.more(last - first)
    return tokens, probabilities


def _best(model: Any, ids: torch.Tensor, top: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, top] tokens and their probabilities after the last of `ids`."""
    outputs = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, return_dict=True)
    return exactly_likeliest(outputs.logits[:, -1, : readable(model)].float(), top)


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Without dropout inside; every module's training flag as it was afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def check(model: Any, top: int) -> None:
    if model.config.is_encoder_decoder:
        raise ValueError(f"model={type(model).__name__}: allowed is a model without an encoder")
    size = readable(model)
    allowed = f"an integer from 1 to {size}, the size of the vocabulary"
    check_integer("top", top, allowed, lambda value: 1 <= value <= size)
