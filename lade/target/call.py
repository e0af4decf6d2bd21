"""The arguments of transformers' decoding method, which lookahead replaces."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation import stopping_criteria

UNLIMITED = 1 << 30


@dataclass(frozen=True, slots=True)
class Call:
    """One call of transformers' decoding method."""

    model: Any
    input_ids: torch.Tensor
    processors: Any
    criteria: Any
    generation_config: Any
    synced_gpus: bool
    model_kwargs: dict[str, Any]

    @property
    def is_assistant(self) -> bool:
        return bool(getattr(self.generation_config, "is_assistant", False))

    @property
    def text_config(self) -> Any:
        return self.model.config.get_text_config(decoder=True)

    @property
    def cache(self) -> Any:
        """The cache that plain decoding would fill."""
        return self.model_kwargs["past_key_values"]

    @property
    def pad_token(self) -> int:
        """The id that fills rows which end early; 0 where none is given."""
        pad = self.generation_config._pad_token_tensor
        return 0 if pad is None else int(pad)


def generated_length(call: Call) -> float:
    """The most tokens of a sequence, prompt included, by the stopping criteria; infinity if none limits it."""
    lengths = [c.max_length for c in call.criteria if isinstance(c, stopping_criteria.MaxLengthCriteria)]
    return min(lengths, default=math.inf)


def continues_without_text(call: Call) -> bool:
    """Whether the cache holds tokens that are not in `input_ids`, by the rule of transformers' prefill."""
    cache, mask = (call.model_kwargs.get(name) for name in ("past_key_values", "attention_mask"))
    if cache is None or not cache.get_seq_length():
        return False
    length = mask.shape[1] if mask is not None else getattr(call.generation_config, "_mask_length", -1)
    return bool(length != call.input_ids.shape[1])


def tokens_beside(call: Call) -> int:
    """Tokens of a sequence that are not in `input_ids`: they lie in the cache, or are given as embeddings."""
    embeds = call.model_kwargs.get("inputs_embeds")
    if embeds is not None:
        return int(embeds.shape[1]) - call.input_ids.shape[1]
    return int(call.cache.get_seq_length()) if continues_without_text(call) else 0


def longest_text(call: Call) -> float:
    """As `generated_length`, with the tokens that are not in `input_ids`."""
    return tokens_beside(call) + generated_length(call)


def prefill_arguments(call: Call) -> tuple[torch.Tensor, Any, dict[str, Any], int]:
    """What a target reads a call's prompts with (`lade.target.model.HFTarget.prefill`)."""
    inputs = {name: value for name, value in call.model_kwargs.items() if name != "tokenizer"}
    return call.input_ids, call.generation_config, inputs, int(min(longest_text(call), UNLIMITED))
