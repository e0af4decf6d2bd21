"""A model's greedy answers to prompts, and its most likely tokens after every token of them.

Knows no file and caches nothing. R prompts side by side, k most likely tokens, A tokens of an answer at most. An answer
takes L = CONTEXT - 1 + A places: the prompt's last CONTEXT tokens, then the answer without its last token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lade.base.arguments import check_integer
from lade.base.shown import invalid
from lade.facts.vocabulary import readable
from lade.memory.context import CONTEXT, NOTHING
from lade.memory.warm.predictions import likeliest_by_block
from lade.memory.warm.reader import Reader
from lade.memory.warm.texts import WarmTexts, rows_for
from lade.memory.warm.turns import special_tokens

SIDE_BY_SIDE = 64  # prompts in one forward, at most: an interrupt loses the answers that are being written
Prompt = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """How prompts are answered.

    Attributes:
        top: predictions kept at each place, k.
        length: tokens of an answer, at most, A.
        side_by_side: prompts answered at once, at most.
        prompts: different ones, the shortest first.
        ends: tokens that end an answer.
    """

    top: int
    length: int
    side_by_side: int
    prompts: tuple[Prompt, ...]
    ends: tuple[int, ...]

    @property
    def places(self) -> int:
        """L."""
        return CONTEXT - 1 + self.length

    def batch(self, first: int) -> tuple[Prompt, ...]:
        return self.prompts[first : first + self.side_by_side]


def answer_plan(model: Any, prompts: Iterable[Sequence[int]], top: int, length: int) -> AnswerPlan:
    """ValueError names the argument."""
    check_integer("length", length, "an integer of at least 1", lambda value: value >= 1)
    ordered = sorted({tuple(prompt) for prompt in prompts}, key=lambda prompt: (len(prompt), prompt))
    size, positions = readable(model), getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not ordered or not ordered[0]:
        raise invalid("prompts", "at least one list of token ids, none empty", ordered)
    if any(not 0 <= token < size for prompt in ordered for token in prompt):
        raise invalid("prompts", f"token ids below {size}, the size of the vocabulary", ordered)
    longest = len(ordered[-1]) + length
    if positions is not None and longest > positions:
        raise ValueError(f"prompts must fit the model's {positions} positions with their answers, got {longest} tokens")
    side_by_side = min(SIDE_BY_SIDE, rows_for(model, longest))
    return AnswerPlan(top, length, side_by_side, tuple(ordered), tuple(special_tokens(model)[1]))


def no_answers(plan: AnswerPlan, number: int = 0) -> WarmTexts:
    """[number, L] texts of which no place counts."""
    shape = number, plan.places
    return WarmTexts(
        torch.full(shape, NOTHING, dtype=torch.int32),
        torch.zeros(*shape, plan.top, dtype=torch.int32),
        torch.zeros(*shape, plan.top),
        torch.zeros(shape, dtype=torch.bool),
    )


def joined(one: WarmTexts, other: WarmTexts) -> WarmTexts:
    return WarmTexts(*(torch.cat([getattr(one, name), getattr(other, name)]) for name in WarmTexts.__slots__))


@torch.no_grad()
def answer(model: Any, plan: AnswerPlan, first: int, report: Callable[[int], object]) -> WarmTexts:
    """The model's answers to a batch of prompts, as texts that are padded with NOTHING on the left.

    Shorter prompts are answered while longer ones are still being read, so no row needs padding in a forward.

    Args:
        model: in evaluation mode.
        first: the index of the batch's first prompt.
        report: called after every forward with the number of tokens of answers that are done; an answer that ends
            early counts in full.

    Raises:
        ValueError: the model has no KV cache.
    """
    batch = _Batch(plan, first)
    reader = Reader(model, len(batch.open), plan.places + batch.asked.shape[1])
    logits = reader.read_in_parts(batch.asked[:, : batch.seen].to(model.device))
    while logits is not None:
        following, done = batch.follow(logits)
        report(done)
        if not batch.open.any():
            return batch.texts
        logits = reader.read(following.to(model.device))
    raise invalid("model", "a model with a KV cache", model)


class _Batch:
    """Prompts that are answered side by side; on the CPU.

    Attributes:
        asked: [R, P] the prompts, padded on the right.
        seen: tokens of each row that were read before the next call of `follow`.
        open: [R] which answers go on.
        texts: the answers so far.
    """

    def __init__(self, plan: AnswerPlan, first: int) -> None:
        prompts, self._plan = plan.batch(first), plan
        self._lengths = torch.tensor([len(prompt) for prompt in prompts])
        longest, self.seen = len(prompts[-1]), len(prompts[0])
        self.asked = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts])
        self.open = torch.ones(len(prompts), dtype=torch.bool)
        self._ends = torch.tensor(plan.ends, dtype=torch.int64)
        self.texts = no_answers(plan, len(prompts))
        for row, prompt in enumerate(prompts):
            last = torch.tensor(prompt[-CONTEXT:])
            self.texts.written[row, CONTEXT - len(last) : CONTEXT] = last

    def follow(self, logits: torch.Tensor) -> tuple[torch.Tensor, int]:
        """The [R, 1] tokens that come after [R, V] logits, and how many tokens of answers that brought."""
        tokens, probabilities = (found.cpu() for found in likeliest_by_block(logits, self._plan.top))
        chosen = tokens[:, 0]
        at = self.seen - self._lengths  # [R] tokens of the answers that were read
        writes = self.open & (at >= 0)
        self._record(writes, CONTEXT - 1 + at, tokens, probabilities, chosen)
        over = writes & (torch.isin(chosen, self._ends) | (at + 1 == self._plan.length))
        self.open &= ~over
        asked = self.asked[:, min(self.seen, self.asked.shape[1] - 1)]
        self.seen += 1
        done = writes.sum() + (self._plan.length - 1 - at)[over].sum()
        return torch.where(at < 0, asked, chosen)[:, None], int(done)

    def _record(
        self,
        rows: torch.Tensor,
        columns: torch.Tensor,
        tokens: torch.Tensor,
        likely: torch.Tensor,
        chosen: torch.Tensor,
    ) -> None:
        texts = self.texts
        where = rows.nonzero()[:, 0], columns[rows]
        texts.tokens[where], texts.probabilities[where] = tokens[rows].int(), likely[rows]
        texts.counted[where] = True
        followed = rows & (columns + 1 < self._plan.places)
        texts.written[followed.nonzero()[:, 0], columns[followed] + 1] = chosen[followed].int()
