"""Arguments of `generate` to draw from, one row each: processors, criteria, lengths. Made anew for every call."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import LogitsProcessorList, StoppingCriteriaList, SynthIDTextWatermarkingConfig, WatermarkingConfig

from hostile.prompts import FIRST_WORD, words
from hostile.users import Count, Diary, Halves, InPlace, Raises, StopError, Sums


@dataclass(frozen=True)
class Place:
    """What an option may depend on: the case's own draws, and the call it stands in."""

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
        """Which of the new tokens something happens at."""
        return self.draws.randrange(self.new_tokens)


Option = Callable[[Place], dict[str, Any]]


def _processor(processor: Any) -> dict[str, Any]:
    return {"logits_processor": LogitsProcessorList([processor])}


def _criterion(criterion: Any) -> dict[str, Any]:
    return {"stopping_criteria": StoppingCriteriaList([criterion])}


def _allowed(place: Place) -> Callable[[int, Any], list[int]]:
    step = place.draws.randint(2, 3)
    return lambda row, text: list(range(FIRST_WORD + (len(text) + row) % step, place.vocabulary))


def _eos(place: Place, **more: Any) -> dict[str, Any]:
    return {"eos_token_id": place.some(6)} | more


# Those that look at their own row alone: a batch may still be decoded natively.
ROWWISE: dict[str, Option] = {
    "eos": _eos,
    "eos-one": lambda place: {"eos_token_id": place.one()},
    "repetition_penalty": lambda place: {"repetition_penalty": place.draws.choice((0.8, 1.1, 1.5))},
    "no_repeat_ngram": lambda place: {"no_repeat_ngram_size": place.draws.randint(1, 4)},
    "bad_words": lambda place: {"bad_words_ids": [place.some(3) for _ in range(3)]},
    "min_new_tokens": lambda place: _eos(place, min_new_tokens=place.token_at()),
    "min_length": lambda place: _eos(place, min_length=place.prompt + place.token_at()),
    "suppress": lambda place: {"suppress_tokens": place.some(8)},
    "begin_suppress": lambda place: {"begin_suppress_tokens": place.some(20)},
    "forced_bos": lambda place: {"forced_bos_token_id": place.one()},
    "forced_eos": lambda place: {"forced_eos_token_id": place.one()},
    "exponential_decay": lambda place: _eos(place, exponential_decay_length_penalty=(place.token_at(), 1.3)),
    "sequence_bias": lambda place: {"sequence_bias": [[place.some(2), place.draws.uniform(-5, 5)] for _ in range(4)]},
    "renormalize": lambda place: {"renormalize_logits": True},
    "remove_invalid": lambda place: {"remove_invalid_values": True},
    "max_length": lambda place: {"max_length": place.prompt + place.new_tokens, "max_new_tokens": None},
    "prefill_chunks": lambda place: {"prefill_chunk_size": place.draws.randint(1, 6)},
}
OTHERS: dict[str, Option] = {
    "encoder_repetition_penalty": lambda place: {"encoder_repetition_penalty": 1.3},
    "encoder_no_repeat_ngram": lambda place: {"encoder_no_repeat_ngram_size": 2},
    "prefix_allowed": lambda place: {"prefix_allowed_tokens_fn": _allowed(place)},
    "watermark": lambda place: {"watermarking_config": WatermarkingConfig(bias=1.5)},
    "guidance": lambda place: {"guidance_scale": 1.4},
    "diary": lambda place: _processor(Diary(place.notes)),
    "halves": lambda place: _processor(Halves()),
    "in-place": lambda place: _processor(InPlace(place.one())),
    "raises": lambda place: _processor(Raises(place.token_at(), StopError)),
    "count": lambda place: _criterion(Count(place.notes, place.some(4), 2)),
    "sums": lambda place: _criterion(Sums()),
    "no-cache": lambda place: {"use_cache": False},
    "attentions": lambda place: {"output_attentions": True, "return_dict_in_generate": True},
    "hidden-states": lambda place: {"output_hidden_states": True, "return_dict_in_generate": True},
    "beams": lambda place: {"num_beams": 2},
    "lookup": lambda place: {"prompt_lookup_num_tokens": 3},
    "max-length-short": lambda place: {"max_length": max(1, place.prompt - 1), "max_new_tokens": None},
    "unknown": lambda place: {"no_such_argument": 1},
}
SAMPLED: dict[str, Option] = {
    "synthid": lambda place: {"watermarking_config": SynthIDTextWatermarkingConfig(keys=[1, 2, 3, 4], ngram_len=3)},
}
WRITTEN: dict[str, Option] = {
    "stop_strings": lambda place: {
        "stop_strings": [". ", "\n", " the"],
        "tokenizer": place.tokenizer,
        "eos_token_id": 2,
    },
    "stop_string": lambda place: {"stop_strings": "e", "tokenizer": place.tokenizer},
}
OPTIONS = ROWWISE | OTHERS | SAMPLED | WRITTEN
# What sampling is asked for with: argument -> values to draw from.
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
