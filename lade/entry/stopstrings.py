"""Stop strings, which transformers' hook for decoding methods does not take: a stopping criterion in their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers.generation import StoppingCriteriaList, StopStringCriteria

from lade.base.shown import invalid


def with_stop_strings(generate_kwargs: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    """The arguments of `model.generate` with `stop_strings` replaced by a stopping criterion.

    Raises:
        ValueError: `stop_strings` is no text or list of texts, or given without a tokenizer.
    """
    kwargs = dict(generate_kwargs)
    stop_strings = kwargs.pop("stop_strings", None)
    if stop_strings is None:
        return kwargs
    texts = [stop_strings] if isinstance(stop_strings, str) else stop_strings
    if not isinstance(texts, list | tuple) or not texts or not all(text and isinstance(text, str) for text in texts):
        raise invalid("stop_strings", "a text, a list of texts or None", stop_strings)
    if tokenizer is None:
        raise ValueError("tokenizer must be the model's tokenizer where stop_strings are given, got None")
    criteria = StoppingCriteriaList(kwargs.pop("stopping_criteria", None) or [])
    criteria.append(StopStringCriteria(stop_strings=stop_strings, tokenizer=tokenizer))
    return kwargs | {"stopping_criteria": criteria}
