"""Random arguments of `generate`, one row each: processors, criteria, lengths. Made for every call."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import LogitsProcessorList, StoppingCriteriaList, SynthIDTextWatermarkingConfig, WatermarkingConfig

from hostile.prompts import FIRST_WORD, words
from hostile.users import Count, Diary, Halves, InPlace, Raises, StopError, Sums


@dataclass(frozen=True)
class OptionContext:
    """The context of an option: the case's generator, and the call."""

    draws: random.Random
    vocabulary: int
    prompt: int
    new_tokens: int
    notes: list[Any]
    tokenizer: Any = None

    def some(self, most: int) -> list[int]:
        return words(self.draws, self.draws.randint(1, most), self.vocabulary)

    def one(self) -> int:
        return words(self.draws, 1, self.vocabulary)[0]

    def token_at(self) -> int:
        """A random index among the new tokens."""
        return self.draws.randrange(self.new_tokens)


Option = Callable[[OptionContext], dict[str, Any]]


def _processor(processor: Any) -> dict[str, Any]:
    return {"logits_processor": LogitsProcessorList([processor])}


def _criterion(criterion: Any) -> dict[str, Any]:
    return {"stopping_criteria": StoppingCriteriaList([criterion])}


def _allowed(context: OptionContext) -> Callable[[int, Any], list[int]]:
    step = context.draws.randint(2, 3)
    return lambda row, text: list(range(FIRST_WORD + (len(text) + row) % step, context.vocabulary))


def _eos(context: OptionContext, **more: Any) -> dict[str, Any]:
    return {"eos_token_id": context.some(6)} | more


# Row-pure options: a batch may still be decoded with lookahead.
ROWWISE: dict[str, Option] = {
    "eos": _eos,
    "eos-one": lambda context: {"eos_token_id": context.one()},
    "repetition_penalty": lambda context: {"repetition_penalty": context.draws.choice((0.8, 1.1, 1.5))},
    "no_repeat_ngram": lambda context: {"no_repeat_ngram_size": context.draws.randint(1, 4)},
    "bad_words": lambda context: {"bad_words_ids": [context.some(3) for _ in range(3)]},
    "min_new_tokens": lambda context: _eos(context, min_new_tokens=context.token_at()),
    "min_length": lambda context: _eos(context, min_length=context.prompt + context.token_at()),
    "suppress": lambda context: {"suppress_tokens": context.some(8)},
    "begin_suppress": lambda context: {"begin_suppress_tokens": context.some(20)},
    "forced_bos": lambda context: {"forced_bos_token_id": context.one()},
    "forced_eos": lambda context: {"forced_eos_token_id": context.one()},
    "exponential_decay": lambda context: _eos(context, exponential_decay_length_penalty=(context.token_at(), 1.3)),
    "sequence_bias": lambda context: {
        "sequence_bias": [[context.some(2), context.draws.uniform(-5, 5)] for _ in range(4)]
    },
    "renormalize": lambda context: {"renormalize_logits": True},
    "remove_invalid": lambda context: {"remove_invalid_values": True},
    "max_length": lambda context: {"max_length": context.prompt + context.new_tokens, "max_new_tokens": None},
    "prefill_chunks": lambda context: {"prefill_chunk_size": context.draws.randint(1, 6)},
}
OTHERS: dict[str, Option] = {
    "encoder_repetition_penalty": lambda context: {"encoder_repetition_penalty": 1.3},
    "encoder_no_repeat_ngram": lambda context: {"encoder_no_repeat_ngram_size": 2},
    "prefix_allowed": lambda context: {"prefix_allowed_tokens_fn": _allowed(context)},
    "watermark": lambda context: {"watermarking_config": WatermarkingConfig(bias=1.5)},
    "guidance": lambda context: {"guidance_scale": 1.4},
    "diary": lambda context: _processor(Diary(context.notes)),
    "halves": lambda context: _processor(Halves()),
    "in-place": lambda context: _processor(InPlace(context.one())),
    "raises": lambda context: _processor(Raises(context.token_at(), StopError)),
    "count": lambda context: _criterion(Count(context.notes, context.some(4), 2)),
    "sums": lambda context: _criterion(Sums()),
    "no-cache": lambda context: {"use_cache": False},
    "attentions": lambda context: {"output_attentions": True, "return_dict_in_generate": True},
    "hidden-states": lambda context: {"output_hidden_states": True, "return_dict_in_generate": True},
    "beams": lambda context: {"num_beams": 2},
    "lookup": lambda context: {"prompt_lookup_num_tokens": 3},
    "max-length-short": lambda context: {"max_length": max(1, context.prompt - 1), "max_new_tokens": None},
    "unknown": lambda context: {"no_such_argument": 1},
}
SAMPLED: dict[str, Option] = {
    "synthid": lambda context: {"watermarking_config": SynthIDTextWatermarkingConfig(keys=[1, 2, 3, 4], ngram_len=3)},
}
WRITTEN: dict[str, Option] = {
    "stop_strings": lambda context: {
        "stop_strings": [". ", "\n", " the"],
        "tokenizer": context.tokenizer,
        "eos_token_id": 2,
    },
    "stop_string": lambda context: {"stop_strings": "e", "tokenizer": context.tokenizer},
}
OPTIONS = ROWWISE | OTHERS | SAMPLED | WRITTEN
# Arguments of sampling -> values to draw from.
WARPERS: dict[str, tuple[Any, ...]] = {
    "temperature": (0.3, 0.7, 1.0, 1.5),
    "top_k": (0, 1, 4, 20),
    "top_p": (0.5, 0.9),
    "min_p": (0.1, 0.4),
    "typical_p": (0.5, 0.9),
    "epsilon_cutoff": (0.01, 0.1),
    "eta_cutoff": (0.01, 0.1),
    "top_h": (0.3, 0.7),
}
