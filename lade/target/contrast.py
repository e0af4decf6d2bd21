"""Contrastive decoding's settings and its rule (Li et al., arXiv 2210.15097): what an expert says more than an amateur.

Knows logits and how many there are; nothing of drafts, caches or how either model runs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

from lade.base.arguments import check_integer, check_model
from lade.base.shown import invalid, shown

IMPLAUSIBLE = -1000.0  # added to the log-probability of what is no candidate: exp of it is 0 in float32 and in float64
LEAST = -1e30  # log-probability that stands for none: times a weight of 0 it is 0, where -inf is nan


@dataclass(frozen=True, slots=True)
class Contrast:
    """Decode by what the model says more than a weaker one: the target changes, not only the way to it.

    A token's score is `log p(x) - weight * log q(x)`, p of the model and q of the amateur, among the plausible ones:
    `p(x) >= alpha * max p`. Scores stand where logits do: processors (temperature, top-k, ...) come after them, greedy
    decoding takes the largest, sampling draws from their softmax, and `output_logits` holds them. Tokens that are not
    plausible stand 1000 below the plausible ones in the model's own order: their probability is 0, and yet processors
    that forbid every plausible token leave the model's next one.

    Attributes:
        amateur: a causal language model of transformers whose token ids mean the same; on any device.
        weight: of the amateur's log-probabilities, at least 0; 1 in the paper.
        temperature: of the amateur's distribution, above 0; 1 in the paper for OPT, 0.5 for GPT-2.
        alpha: from 0 (every token is plausible) to 1 (the likeliest alone); 0.1 in the paper.
        vocabulary: tokens of the shared tokenizer, at least 1, where the two models pad their logits to different
            sizes; nothing beyond it is ever chosen. `None`: both have as many logits.

    Raises:
        ValueError: names the field, its value and what is allowed.
    """

    amateur: Any
    weight: float = 1.0
    temperature: float = 1.0
    alpha: float = 0.1
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        check_model("amateur", self.amateur)
        _check_number("weight", self.weight, "a number of at least 0", lambda value: value >= 0)
        _check_number("temperature", self.temperature, "a number above 0", lambda value: value > 0)
        _check_number("alpha", self.alpha, "a number from 0 to 1", lambda value: 0 <= value <= 1)
        if self.vocabulary is not None:
            check_integer("vocabulary", self.vocabulary, "an integer of at least 1, or None", lambda value: value >= 1)


def check_contrast(contrast: Any, model: Any) -> None:
    """An error where this model cannot be contrasted like that, before any work.

    Raises:
        ValueError: contrast is none, or the two vocabularies do not go together; names both sizes.
    """
    check_kind(contrast)
    own, theirs = vocabulary_size(model), vocabulary_size(contrast.amateur)
    if contrast.vocabulary is None and own != theirs:
        raise ValueError(
            f"contrast: the amateur has a vocabulary of {theirs} tokens and the model one of {own}: allowed are models "
            "with one tokenizer; where they pad it to different sizes, Contrast(vocabulary=...) says its own size"
        )
    if contrast.vocabulary is not None and contrast.vocabulary > min(own, theirs):
        raise ValueError(
            f"contrast: vocabulary={contrast.vocabulary}: allowed are at most the {own} tokens of the model "
            f"and the {theirs} of the amateur"
        )


def check_kind(contrast: Any) -> None:
    """ValueError where the argument `contrast` is none."""
    if not isinstance(contrast, Contrast):
        raise invalid("contrast", "a lade.Contrast or None", contrast)


def vocabulary_size(model: Any) -> int:
    return int(model.config.get_text_config(decoder=True).vocab_size)


def contrasted(expert: torch.Tensor, amateur: torch.Tensor, contrast: Contrast) -> torch.Tensor:
    """The contrastive scores, in at least float32.

    Args:
        expert: [..., V] logits of the model.
        amateur: [..., V'] logits of the amateur, on any device; V' is V unless `contrast.vocabulary` is given.

    Returns:
        [..., V] on the expert's device; -inf beyond `contrast.vocabulary`.
    """
    size = contrast.vocabulary or expert.shape[-1]
    precision = torch.promote_types(expert.dtype, torch.float32)
    likely = expert[..., :size].to(precision).log_softmax(-1)
    known = amateur[..., :size].to(expert.device, precision).div(contrast.temperature).log_softmax(-1).clamp(min=LEAST)
    least = likely.amax(-1, keepdim=True) + (math.log(contrast.alpha) if contrast.alpha else -math.inf)
    scores = torch.where(likely >= least, likely - contrast.weight * known, likely + IMPLAUSIBLE)
    return pad(scores, (0, expert.shape[-1] - size), value=-math.inf)


def _check_number(name: str, value: Any, allowed: str, holds: Callable[[float], bool]) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if not number or not holds(value):
        raise ValueError(f"{name}={shown(value)}: allowed is {allowed}")
