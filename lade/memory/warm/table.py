"""Computing a warm table: a model's most likely tokens after every vocabulary entry alone and along texts that it
writes itself.

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
from lade.facts.vocabulary import readable
from lade.memory.warm.contexts import smoothed
from lade.memory.warm.predictions import AfterPrefix, likeliest_by_block
from lade.memory.warm.prefix import Prefix, candidates, likeliest_prefix, token_masses
from lade.memory.warm.texts import TextPlan, TextsPart, rows_for, shape_for, write_texts
from lade.memory.warm.turns import turns_of
from lade.memory.warmtable import WarmTable

LOGITS = 1 << 25  # of a batch: 128 MiB in float32
MOST_ROWS = 4096  # of a batch
FIRST = 16  # one entry in this many, the most frequent ones, is computed before the other texts
Progress = Callable[[int, int], None]
"""Called with how many tokens went through the model, and of how many."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a table is computed: the top k of V entries, `entries` per forward; and texts."""

    vocabulary: int
    top: int
    entries: int
    texts: TextPlan

    @property
    def total(self) -> int:
        """Tokens that go through the model."""
        return self.vocabulary + self.texts.rows * self.texts.length


def plan_of(model: Any, top: int, batch_tokens: int | None = None, tokenizer: Any = None) -> Plan:
    size, turns = readable(model), turns_of(model, tokenizer)
    entries = max(1, min(LOGITS // size, MOST_ROWS)) if batch_tokens is None else batch_tokens
    rows, length = shape_for(model.config.get_text_config(decoder=True), turns)
    side_by_side = min(entries, rows_for(model, length + len(turns.head)))
    return Plan(size, top, entries, TextPlan(top, rows, length, side_by_side, turns))


@dataclass(slots=True, eq=False)
class WarmPart:
    """A partly computed table, consistent at every moment, as an interrupt may come anywhere.

    Attributes:
        tokens, probabilities: [V, k]; 0 in rows that are not computed yet.
        entries: how many entries are computed, the most frequent ones first (`entry_order`).
        prefix: what stands before an entry; `None` until it is chosen.
        seconds: the time that it took before `start`, of `time.perf_counter`.
    """

    tokens: torch.Tensor
    probabilities: torch.Tensor
    entries: int = 0
    prefix: Prefix | None = None
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

    def table(self, complete: bool) -> WarmTable:
        """The table as far as it is computed; it shares no memory with the part."""
        tokens, probabilities = self.tokens.clone(), self.probabilities.clone()
        contexts = smoothed(self.texts.texts(tokens.shape[1]), tokens, probabilities)
        return WarmTable(tokens, probabilities, contexts, self.cost, complete)


def new_part(plan: Plan) -> WarmPart:
    shape = plan.vocabulary, plan.top
    return WarmPart(torch.zeros(shape, dtype=torch.int32), torch.zeros(shape))


def entry_order(plan: Plan, texts: TextsPart) -> torch.Tensor:
    """[V] all entries, the most frequent ones in the first batch of texts first; ties by id.

    In most vocabularies small ids are frequent tokens.
    """
    if not texts.whole:
        return torch.arange(plan.vocabulary)
    first = TextsPart(texts.whole[:1]).texts(plan.top)
    return token_masses(first, plan.vocabulary).argsort(descending=True, stable=True)


@torch.no_grad()
def compute(
    model: Any,
    top: int = 16,
    batch_tokens: int | None = None,
    progress: Progress | None = None,
    part: WarmPart | None = None,
    tokenizer: Any = None,
    usable: Callable[[WarmPart], object] = lambda part: None,
) -> WarmTable:
    """Compute the `top` tokens after every vocabulary entry alone, and along texts that the model writes.

    Args:
        batch_tokens: entries in one forward; default: as many as keep the logits small.
        progress: called with how many tokens went through the model, and of how many.
        part: what was computed earlier, by the same plan; it is updated in place.
        tokenizer: its chat template begins the texts.
        usable: called with the part whenever it has grown to a better table.

    Raises:
        ValueError: names the argument.
    """
    check(model, top)
    if batch_tokens is not None:
        check_integer("batch_tokens", batch_tokens, "an integer of at least 1", lambda value: value >= 1)
    plan = plan_of(model, top, batch_tokens, tokenizer)
    part = part or new_part(plan)
    report = _Report(progress, plan.total, part.done)
    with evaluating(model):
        for _ in _stages(model, plan, part, report):
            usable(part)
    return part.table(complete=True)


def _stages(model: Any, plan: Plan, part: WarmPart, report: _Report) -> Iterator[None]:
    """Compute what the part lacks; yields when it has grown to a better table, not at its end."""
    write_texts(model, plan.texts, report.more, part.texts, batches=1)
    if part.prefix is None:
        part.prefix = _prefix(model, plan, part)
    order = entry_order(plan, part.texts)
    if part.entries < (first := plan.vocabulary // FIRST):
        _entries(model, plan, part, order[:first], report)
        yield
    if len(part.texts.whole) < len(plan.texts.batches):
        write_texts(model, plan.texts, report.more, part.texts)
        yield
    _entries(model, plan, part, order, report)


def _prefix(model: Any, plan: Plan, part: WarmPart) -> Prefix:
    texts = part.texts.texts(plan.top)
    if not texts.counted.any():
        return ()
    return likeliest_prefix(model, candidates(model, plan.texts.turns, texts), texts, plan.entries)


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


def _entries(model: Any, plan: Plan, part: WarmPart, order: torch.Tensor, report: _Report) -> None:
    """Compute the vocabulary entries of `order` that the part lacks."""
    missing = order[part.entries :]
    if not len(missing):
        return
    after = AfterPrefix(model, part.prefix or (), plan.entries)
    for ids in torch.split(missing, plan.entries):
        logits = after.logits(ids.to(model.device))[:, : plan.vocabulary]
        tokens, probabilities = likeliest_by_block(logits, plan.top)
        part.tokens[ids], part.probabilities[ids] = tokens.to("cpu", torch.int32), probabilities.cpu()
        part.entries += len(ids)
        report.more(len(ids))


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
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
