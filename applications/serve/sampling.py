"""From the fields of a request to the arguments of `model.generate`, which `lade.Engine.submit` takes too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteriaList

from lade.applications.serve.errors import bad
from lade.applications.serve.penalties import Penalties
from lade.applications.serve.schema import Sampling
from lade.applications.serve.stops import StopText
from lade.applications.serve.text import AnswerText
from lade.base.coldest import COLDEST

DEFAULT_TEMPERATURE = 1.0


def generate_arguments(
    request: Sampling,
    prompt_length: int,
    most: int,
    text: AnswerText,
    vocabulary: int,
    mask: LogitsProcessor | None = None,
) -> dict[str, Any]:
    """The arguments for one answer.

    Args:
        prompt_length: tokens before it.
        most: tokens of the answer.
        text: of the answer, with the stop strings that end it.
        vocabulary: ids below it are tokens of the model.
        mask: of a grammar.

    Raises:
        APIError: `logit_bias` names no token of the model.
    """
    found: dict[str, Any] = {"max_new_tokens": most, "repetition_penalty": request.repetition_penalty or 1.0}
    found |= _choice(request) | ({"min_new_tokens": request.min_tokens} if request.min_tokens else {})
    bias = _bias(request, vocabulary)
    if bias:
        found["sequence_bias"] = bias
    frequency, presence = request.frequency_penalty or 0.0, request.presence_penalty or 0.0
    own = [Penalties(prompt_length, frequency, presence)] if frequency or presence else []
    if own or mask is not None:
        found["logits_processor"] = LogitsProcessorList([*own, *filter(None, [mask])])
    if text.search.stops:
        found["stopping_criteria"] = StoppingCriteriaList([StopText(text, prompt_length)])
    return found


def seed_of(request: Sampling, choice: int) -> int | None:
    """The seed of one of several choices; the first one has the request's own. Negative ones count from 2**64."""
    return None if request.seed is None else (request.seed + choice) % (1 << 64)


def as_ids(prompt: Sequence[int], device: torch.device) -> dict[str, torch.Tensor]:
    """The prompt as `model.generate` takes it; the mask says that none of its tokens is padding."""
    ids = torch.tensor([list(prompt)], device=device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _choice(request: Sampling) -> dict[str, Any]:
    temperature = DEFAULT_TEMPERATURE if request.temperature is None else request.temperature
    if temperature < COLDEST:
        return {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    top_p = 1.0 if request.top_p is None else request.top_p
    found = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": max(0, request.top_k or 0)}
    return found | ({"min_p": request.min_p} if request.min_p else {})


def _bias(request: Sampling, vocabulary: int) -> list[list[Any]]:
    """What transformers calls a sequence bias: [[token], bias] each."""
    found = []
    for name, bias in (request.logit_bias or {}).items():
        if not (name.isascii() and name.isdigit()) or len(name) > 9 or int(name) >= vocabulary:
            raise bad("logit_bias", f"an object with token ids from 0 to {vocabulary - 1} as its names", name)
        found.append([[int(name)], float(bias)])
    return found
