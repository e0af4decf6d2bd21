"""Contrastive decoding (Li et al., arXiv 2210.15097): its settings and its scores.

Knows logits; nothing of drafts, caches or forwards.
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
from lade.base.coldest import COLDEST
from lade.base.shown import invalid

IMPLAUSIBLE = -1000.0  # added to log-probabilities below the threshold; its exp is 0 in float32 and in float64
HEAVIEST = 1e6  # whose product with `LEAST` is finite in float32
LEAST = -1e30  # replaces a log-probability of -inf, whose product with a weight of 0 is NaN


@dataclass(frozen=True, slots=True)
class Contrast:
    """Contrastive decoding: prefer tokens to which the model gives more probability than a weaker model does.

    The score of a plausible token, `p(x) >= alpha * max p`, is `log p(x) - weight * log q(x)`, p of the model and q of
    the amateur. Scores take the place of logits: processors (temperature, top-k, ...) change them, greedy decoding
    takes the largest, sampling draws from their softmax, and `output_logits` returns them. Other tokens score
    `log p(x) - 1000`: their probability is 0, but they stay in the model's order where processors forbid every
    plausible token.

    Attributes:
        amateur: a causal language model of transformers with the same tokenizer; on any device.
        weight: of the amateur's log-probabilities, from 0 to a million; 1 in the paper.
        temperature: of the amateur's distribution, at least 1e-5; in the paper 1 for OPT, 0.5 for GPT-2.
        alpha: plausibility threshold, from 0 (all tokens) to 1 (the most likely one only); 0.1 in the paper.
        vocabulary: size of the shared tokenizer, at least 1, where the models pad their logits to different sizes; ids
            from it on are never chosen. `None`: both have the same number of logits.

    Raises:
        ValueError: a field has a value that is not allowed.
    """

    amateur: Any
    weight: float = 1.0
    temperature: float = 1.0
    alpha: float = 0.1
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        check_model("amateur", self.amateur)
        _check_number("weight", self.weight, f"a number from 0 to {HEAVIEST:g}", lambda value: 0 <= value <= HEAVIEST)
        _check_number(
            "temperature", self.temperature, f"a number of at least {COLDEST:g}", lambda value: value >= COLDEST
        )
        _check_number("alpha", self.alpha, "a number from 0 to 1", lambda value: 0 <= value <= 1)
        if self.vocabulary is not None:
            check_integer("vocabulary", self.vocabulary, "an integer of at least 1, or None", lambda value: value >= 1)


def check_contrast(contrast: Any, model: Any) -> None:
    """Check that this model can be contrasted, before any work.

    Raises:
        ValueError: contrast is not a `Contrast`, or the vocabularies do not match.
    """
    check_kind(contrast)
    own, theirs = vocabulary_size(model), vocabulary_size(contrast.amateur)
    if contrast.vocabulary is None and own != theirs:
        raise ValueError(
            f"contrast: the amateur has a vocabulary of {theirs} tokens and the model one of {own}: both must have one "
            "tokenizer; where they pad its vocabulary to different sizes, give its size as Contrast(vocabulary=...)"
        )
    if contrast.vocabulary is not None and contrast.vocabulary > min(own, theirs):
        allowed = f"at most {min(own, theirs)}, as the model has {own} tokens and the amateur {theirs}"
        raise invalid("contrast.vocabulary", allowed, contrast.vocabulary)


def check_kind(contrast: Any) -> None:
    """ValueError if the argument `contrast` is not a `Contrast`."""
    if not isinstance(contrast, Contrast):
        raise invalid("contrast", "a lade.Contrast or None", contrast)


def vocabulary_size(model: Any) -> int:
    return int(model.config.get_text_config(decoder=True).vocab_size)


def contrasted(expert: torch.Tensor, amateur: torch.Tensor, contrast: Contrast) -> torch.Tensor:
    """Contrastive scores, in at least float32.

    Args:
        expert: [..., V] logits of the model.
        amateur: [..., V'] logits of the amateur, on any device; V' = V unless `contrast.vocabulary` is given.

    Returns:
        [..., V] on the expert's device; -inf from `contrast.vocabulary` on.
    """
    size = contrast.vocabulary or expert.shape[-1]
    precision = torch.promote_types(expert.dtype, torch.float32)
    log_p = expert[..., :size].to(precision).log_softmax(-1)
    log_q = amateur[..., :size].to(expert.device, precision).div(contrast.temperature).log_softmax(-1).clamp(min=LEAST)
    threshold = log_p.amax(-1, keepdim=True) + (math.log(contrast.alpha) if contrast.alpha else -math.inf)
    scores = torch.where(log_p >= threshold, log_p - contrast.weight * log_q, log_p + IMPLAUSIBLE)
    return pad(scores, (0, expert.shape[-1] - size), value=-math.inf)


def _check_number(name: str, value: Any, allowed: str, holds: Callable[[float], bool]) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if not number or not holds(value):
        raise invalid(name, allowed, value)
