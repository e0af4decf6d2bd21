"""The warm table, and computing it: a model's most likely tokens after every vocabulary entry alone and along texts
that it writes itself.

Knows no file and caches no table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from lade.base.arguments import check_integer
from lade.base.shown import invalid
from lade.core.topk import exactly_likeliest
from lade.facts.vocabulary import readable
from lade.memory.warm.contexts import WarmContexts, smoothed
from lade.memory.warm.texts import ROWS, TextsPart, length_for, rows_for, write_texts

LOGITS = 1 << 25  # of a batch: 128 MiB in float32
MOST_ROWS = 4096  # of a batch
Progress = Callable[[int, int], None]
"""Called with how many tokens went through the model, and of how many."""


@dataclass(frozen=True, slots=True, eq=False)
class WarmTable:
    """The model's most likely next tokens after each token alone, and after longer contexts from texts of its own.

    Attributes:
        tokens: [V, k] int32, most likely first.
        probabilities: [V, k] float32, descending.
        contexts: its predictions after endings of texts that it wrote.
        seconds: the time that computing it took.
    """

    tokens: torch.Tensor
    probabilities: torch.Tensor
    contexts: WarmContexts
    seconds: float
    _entries: dict[int, tuple[list[int], list[float]]] = field(default_factory=dict, init=False, repr=False)

    @property
    def kept(self) -> int:
        """Tokens per entry, k; a table with more also serves a request for fewer."""
        return self.tokens.shape[1]

    def entry(self, token: int) -> tuple[list[int], list[float]]:
        """Tokens and probabilities after `token`, nothing for one outside the vocabulary; not to be changed."""
        found = self._entries.get(token)
        if found is None:
            inside = 0 <= token < len(self.tokens)
            found = (self.tokens[token].tolist(), self.probabilities[token].tolist()) if inside else ([], [])
            self._entries[token] = found
        return found


@dataclass(frozen=True, slots=True)
class Plan:
    """How a table is computed: the top k of V entries, `entries` per forward; texts, some side by side."""

    vocabulary: int
    top: int
    entries: int
    length: int
    side_by_side: int
    rows: int = ROWS


def plan_of(model: Any, top: int, batch_tokens: int | None = None) -> Plan:
    size = readable(model)
    entries = max(1, min(LOGITS // size, MOST_ROWS)) if batch_tokens is None else batch_tokens
    length = length_for(model.config.get_text_config(decoder=True))
    return Plan(size, top, entries, length, min(entries, rows_for(model, length)))


@dataclass(slots=True, eq=False)
class WarmPart:
    """A partly computed table, consistent at every moment, as an interrupt may come anywhere.

    Attributes:
        tokens, probabilities: [V, k]; the first `entries` rows count.
        seconds: the time that it took before `start`, of `time.perf_counter`.
    """

    tokens: torch.Tensor
    probabilities: torch.Tensor
    entries: int = 0
    texts: TextsPart = field(default_factory=TextsPart)
    seconds: float = 0.0
    start: float = field(default_factory=time.perf_counter)

    @property
    def done(self) -> int:
        """Tokens that went through the model."""
        return self.entries + self.texts.tokens

    @property
    def cost(self) -> float:
        """Seconds up to now."""
        return self.seconds + time.perf_counter() - self.start


def new_part(plan: Plan) -> WarmPart:
    shape = plan.vocabulary, plan.top
    return WarmPart(torch.empty(shape, dtype=torch.int32), torch.empty(shape))


@torch.no_grad()
def compute(
    model: Any,
    top: int = 16,
    batch_tokens: int | None = None,
    progress: Progress | None = None,
    part: WarmPart | None = None,
) -> WarmTable:
    """Compute the `top` tokens after every vocabulary entry alone, and along texts that the model writes.

    Args:
        batch_tokens: entries in one forward; default: as many as keep the logits small.
        progress: called with how many tokens went through the model, and of how many.
        part: what was computed earlier, by the same plan; it is updated in place.

    Raises:
        ValueError: names the argument.
    """
    check(model, top)
    if batch_tokens is not None:
        check_integer("batch_tokens", batch_tokens, "an integer of at least 1", lambda value: value >= 1)
    plan = plan_of(model, top, batch_tokens)
    part = part or new_part(plan)
    report = _Report(progress, plan.vocabulary + plan.rows * plan.length, part.done)
    with _evaluating(model):
        _entries(model, plan, part, report)
        texts = write_texts(model, top, plan.rows, plan.length, plan.side_by_side, report.more, part.texts)
    contexts = smoothed(texts, part.tokens, part.probabilities)
    return WarmTable(part.tokens, part.probabilities, contexts, part.cost)


@dataclass(slots=True)
class _Report:
    """Counts tokens and passes the count on."""

    progress: Progress | None
    total: int
    done: int = 0

    def more(self, tokens: int) -> None:
        self.done += tokens
        if self.progress is not None:
            self.progress(self.done, self.total)


def _entries(model: Any, plan: Plan, part: WarmPart, report: _Report) -> None:
    """Compute the vocabulary entries that the part lacks."""
    for first in range(part.entries, plan.vocabulary, plan.entries):
        last = min(first + plan.entries, plan.vocabulary)
        ids = torch.arange(first, last, device=model.device)[:, None]  # [rows, 1]
        indices, best = _predictions(model, ids, plan.top)
        part.tokens[first:last], part.probabilities[first:last] = indices.to("cpu", torch.int32), best.cpu()
        part.entries = last
        report.more(last - first)


def _predictions(model: Any, ids: torch.Tensor, top: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, top] most likely tokens after `ids`, and their probabilities."""
    outputs = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, return_dict=True)
    return exactly_likeliest(outputs.logits[:, -1, : readable(model)].float(), top)


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode inside; afterwards every module's training flag is restored."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def check(model: Any, top: int) -> None:
    if model.config.is_encoder_decoder:
        raise invalid("model", "a model without an encoder", model)
    size = readable(model)
    allowed = f"an integer from 1 to {size}, the size of the vocabulary"
    check_integer("top", top, allowed, lambda value: 1 <= value <= size)
