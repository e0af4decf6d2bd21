"""A user's prompts for a warm table: as tokens, and what the table wins on prompts of their kind that it has not seen.

Prints nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

import lade
from lade.applications.bench.conversation import Conversation
from lade.applications.bench.prompts import Prompt
from lade.applications.bench.task import RunOptions, ask, make_task
from lade.applications.interval import Estimate, Rate, pooled_rate_ratio
from lade.memory.warm.progress import progress_bar
from lade.memory.warm.warming import use
from lade.memory.warmtable import WarmTable

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

EVERY = 5  # of so many prompts the last one is held out
BUDGET = 32  # nodes of a tree

Tokens = list[int]


def tokenised(
    prompts: Sequence[Prompt], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, length: int
) -> tuple[list[Tokens], int]:
    """The first turns as tokens, in the chat template if there is one, and how many do not fit with their answers.

    Raises:
        ValueError: none fits.
    """
    options = RunOptions(max_new_tokens=length, turns=1)
    task = make_task("the file", prompts, model, tokenizer, options)
    return [ask(Conversation(task.style), fitting, 0, options) for fitting in task.prompts], task.skipped


def gain(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Tokens],
    own: WarmTable,
    grown: WarmTable,
    length: int,
) -> str:
    """One line about tokens per step with the grown table and with the model's own, greedy, at one size of trees."""
    rates: list[tuple[Rate, Rate]] = []
    with progress_bar("prompts held out") as move:
        for done, prompt in enumerate(prompts, 1):
            pair = [_rate(model, tokenizer, prompt, table, length) for table in (own, grown)]
            rates += [(pair[1], pair[0])] if all(steps for _, steps in pair) else []
            move(done, len(prompts))
    if not rates:
        return f"prompts held out: {len(prompts)}; every answer is one token"
    found, (with_them, without) = pooled_rate_ratio(rates), (pooled(side) for side in zip(*rates, strict=True))
    return (
        f"prompts held out: {len(prompts)}; tokens per step on them, {BUDGET} tokens in a forward: {with_them:.2f} "
        f"with these contexts, {without:.2f} without, {_shown(found)}"
    )


def _rate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: Tokens, table: WarmTable, length: int
) -> Rate:
    """New tokens, and steps."""
    use(model, table, tokenizer=tokenizer)
    ids = torch.tensor([prompt], device=model.device)
    config = lade.LookaheadConfig(budget=BUDGET, adapt=False)
    mask = torch.ones_like(ids)
    lade.generate(model, ids, config=config, attention_mask=mask, do_sample=False, max_new_tokens=length)
    stats = lade.last_stats()
    assert stats is not None
    return stats.new_tokens, stats.steps


def pooled(rates: Sequence[Rate]) -> float:
    return sum(amount for amount, _ in rates) / sum(count for _, count in rates)


def _shown(ratio: Estimate) -> str:
    interval = "" if ratio.low is None else f" (95 % interval {ratio.low:.2f}–{ratio.high:.2f})"
    return f"{ratio.median:.2f}×{interval}"
