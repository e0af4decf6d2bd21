"""Training objectives: cross entropy, unlikelihood of repeated n-grams, and distillation.

An objective maps a model and rows [R, L + 1] of token ids to a scalar. Knows no data and no optimizer. V entries of the
vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM

from lade.base.shown import invalid

PROMPT, CONTINUED = 64, 96  # tokens of a row that are the prompt, and the most new tokens
GRAM = 4
Objective = Callable[[LlamaForCausalLM, Tensor], Tensor]


def logits(model: LlamaForCausalLM, ids: Tensor) -> Tensor:
    """[R * L, V] float32 logits of ids [R, L], computed in bfloat16."""
    with torch.autocast(ids.device.type, torch.bfloat16):
        scores: Tensor = model(input_ids=ids, use_cache=False).logits  # [R, L, V]
    return scores.flatten(0, 1).float()


def next_token(model: LlamaForCausalLM, rows: Tensor) -> Tensor:
    """Mean cross entropy in nats."""
    return F.cross_entropy(logits(model, rows[:, :-1]), rows[:, 1:].flatten())


@dataclass(frozen=True)
class Unlooping:
    """Mean cross entropy plus `weight` times the sequence-level unlikelihood of repeats (arXiv 1908.04319).

    The model continues the first tokens of every second row greedily; tokens that complete a repeated 4-gram count.
    """

    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise invalid("weight", "more than 0", self.weight)

    def __call__(self, model: LlamaForCausalLM, rows: Tensor) -> Tensor:
        return next_token(model, rows) + self.weight * unlikelihood(model, rows[::2, :PROMPT])


@torch.compiler.disable  # type: ignore[untyped-decorator]
def unlikelihood(model: LlamaForCausalLM, prompts: Tensor) -> Tensor:
    """Mean of -log(1 - p) over the greedy text after the prompts [R, P]; tokens that repeat nothing count 0."""
    with torch.no_grad():
        text = model.generate(
            prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=CONTINUED, do_sample=False
        )  # [R, P + K]
    new = text[:, prompts.shape[1] :]
    scores = logits(model, text[:, :-1]).view(*text[:, 1:].shape, -1)[:, prompts.shape[1] - 1 :]  # [R, K, V]
    chance = scores.softmax(-1).gather(-1, new[..., None])[..., 0]  # [R, K]
    return -(torch.log1p(-chance.clamp(max=0.999)) * repeats(new, model.config.eos_token_id)).mean()


def repeats(new: Tensor, end: int) -> Tensor:
    """[R, K] bools: whether a new token completes a repeated 4-gram before the end of its text."""
    if new.shape[1] < GRAM:  # every text ended at once
        return torch.zeros_like(new, dtype=torch.bool)
    grams = new.unfold(1, GRAM, 1)  # [R, K - 3, 4]
    seen = (grams[:, :, None] == grams[:, None]).all(-1).tril(-1).any(-1)
    ended = (new == end).cumsum(1) > 0
    return F.pad(seen, (GRAM - 1, 0)) & ~ended


@dataclass(frozen=True)
class Distillation:
    """`share` times KL(teacher || draft) plus `1 - share` times the cross entropy."""

    teacher: LlamaForCausalLM
    share: float = 0.8

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise invalid("share", "a number from 0 to 1", self.share)

    def __call__(self, model: LlamaForCausalLM, rows: Tensor) -> Tensor:
        scores = F.log_softmax(logits(model, rows[:, :-1]), dim=-1)  # [R * L, V]
        with torch.no_grad():
            wanted = F.log_softmax(logits(self.teacher, rows[:, :-1]), dim=-1)
        distance = F.kl_div(scores, wanted, reduction="batchmean", log_target=True)
        return self.share * distance + (1 - self.share) * F.nll_loss(scores, rows[:, 1:].flatten())
