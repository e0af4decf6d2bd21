"""Logits processors and warpers: each does what it does without lade, one call per emitted token."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from families import BY_NAME
from sidebyside import CONFIG, NEW_TOKENS, PROMPTS, assert_looked_ahead, assert_same, both, encode, story, token
from tiny import tiny_model, words
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
    SynthIDTextWatermarkingConfig,
    WatermarkingConfig,
)

import lade

PROCESSORS: dict[str, Callable[[], dict[str, Any]]] = {
    "repetition_penalty": lambda: {"repetition_penalty": 1.1},
    "encoder_repetition_penalty": lambda: {"encoder_repetition_penalty": 1.2},
    "no_repeat_ngram_size": lambda: {"no_repeat_ngram_size": 4},
    "min_new_tokens": lambda: {"min_new_tokens": 16, "eos_token_id": token(".")},
    "min_length": lambda: {"min_length": 36, "eos_token_id": token(".")},
    "bad_words": lambda: {"bad_words_ids": [[token(",")], story()[1].encode("was", add_special_tokens=False)]},
    "sequence_bias": lambda: {"sequence_bias": [[[token(",")], -5.0]]},
    "suppress_tokens": lambda: {"suppress_tokens": [token(","), token("She")]},
    "begin_suppress_tokens": lambda: {"begin_suppress_tokens": list(range(100)) + list(range(200, 512))},
    "forced_eos": lambda: {"forced_eos_token_id": token(".")},
    "exponential_decay": lambda: {
        "exponential_decay_length_penalty": (16, 1.05),
        "eos_token_id": token("She"),
    },
    "remove_invalid_values": lambda: {"remove_invalid_values": True},
    "renormalize": lambda: {"renormalize_logits": True, "repetition_penalty": 1.1},
    "prefix_allowed_tokens": lambda: {
        "prefix_allowed_tokens_fn": lambda row, text: list(range(3 + len(text) % 2, 512))
    },
    "guidance": lambda: {"guidance_scale": 1.3},
    "watermark": lambda: {"watermarking_config": WatermarkingConfig(bias=1.0)},
    "many": lambda: {
        "repetition_penalty": 1.1,
        "no_repeat_ngram_size": 5,
        "suppress_tokens": [token(",")],
    },
}
WARPERS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.5},
    "top_k": {"top_k": 4, "temperature": 0.6},
    "top_p": {"top_p": 0.7, "top_k": 0},
    "min_p": {"min_p": 0.3},
    "top_h": {"top_h": 0.3},
    "typical_p": {"typical_p": 0.5, "temperature": 0.5},
    "epsilon_cutoff": {"epsilon_cutoff": 0.05, "temperature": 0.5},
    "eta_cutoff": {"eta_cutoff": 0.05, "temperature": 0.5},
    "many": {"temperature": 0.6, "top_k": 10, "top_p": 0.9, "repetition_penalty": 1.1},
    "synthid": {
        "watermarking_config": SynthIDTextWatermarkingConfig(keys=[1, 2, 3, 4], ngram_len=3),
        "temperature": 0.5,
    },
}
LATE = ("min_new_tokens", "min_length", "exponential_decay")  # their effect begins or ends after 16 tokens
FEW = 16  # new tokens of a batch where nothing depends on their number
# These look at nothing but their own row.
IN_BATCHES = sorted(
    PROCESSORS.keys() - {"encoder_repetition_penalty", "prefix_allowed_tokens", "guidance", "watermark"}
)


@pytest.mark.parametrize("name", PROCESSORS)
def test_processors(name: str) -> None:
    assert_same(**PROCESSORS[name]())


@pytest.mark.parametrize("name", WARPERS)
def test_warpers(name: str) -> None:
    assert_same(do_sample=True, **WARPERS[name])


@pytest.mark.parametrize("name", IN_BATCHES)
def test_processors_in_batches(name: str) -> None:
    assert_same(PROMPTS, max_new_tokens=NEW_TOKENS if name in LATE else FEW, **PROCESSORS[name]())


@pytest.mark.parametrize("name", sorted(PROCESSORS.keys() - set(IN_BATCHES)))
def test_processors_that_know_the_batch_fall_back(name: str) -> None:
    with pytest.warns(lade.FallbackWarning, match="LogitsProcessor"):
        theirs, ours = both(story()[0], lambda: encode(*PROMPTS), max_new_tokens=FEW, **PROCESSORS[name]())
    assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("name", sorted(WARPERS.keys() - {"synthid"}))
def test_warpers_in_batches(name: str) -> None:
    assert_same(PROMPTS, do_sample=True, max_new_tokens=FEW, **WARPERS[name])


class Diary(LogitsProcessor):
    """Dislikes whatever stands three tokens back, and remembers every text that it was shown."""

    def __init__(self) -> None:
        self.texts: list[list[list[int]]] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.texts.append(input_ids.tolist())
        return scores.scatter_add(1, input_ids[:, -3:-2], torch.full((len(scores), 1), -2.0))


class Sentences(StoppingCriteria):
    """Stops after a number of full stops, and remembers every text that it was shown."""

    def __init__(self, full_stop: int, sentences: int) -> None:
        self.full_stop, self.sentences = full_stop, sentences
        self.texts: list[list[list[int]]] = []

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        self.texts.append(input_ids.tolist())
        return (input_ids == self.full_stop).sum(1) >= self.sentences


@pytest.mark.parametrize("sample", [False, True])
def test_user_classes_see_one_token_at_a_time(sample: bool) -> None:
    model, inputs = story()[0], encode()
    kwargs = {"max_new_tokens": 100, "do_sample": sample, "temperature": 0.5 if sample else None}
    seen = []
    for generate in (model.generate, lambda **kw: lade.generate(model, config=CONFIG, **kw)):
        diary, sentences = Diary(), Sentences(token("."), 3)
        torch.manual_seed(0)
        out = generate(
            **inputs,
            **kwargs,
            logits_processor=LogitsProcessorList([diary]),
            stopping_criteria=StoppingCriteriaList([sentences]),
        )
        seen.append((out.tolist(), diary.texts, sentences.texts))
    assert seen[1] == seen[0]
    assert out.shape[1] < inputs["input_ids"].shape[1] + 100
    assert_looked_ahead()


@pytest.mark.parametrize("user", ["logits_processor", "stopping_criteria"])
def test_user_classes_in_batches_fall_back(user: str) -> None:
    model, inputs = story()[0], encode(*PROMPTS)
    make = {
        "logits_processor": lambda: LogitsProcessorList([Diary()]),
        "stopping_criteria": lambda: StoppingCriteriaList([Sentences(token("."), 2)]),
    }[user]
    theirs = model.generate(**inputs, do_sample=False, max_new_tokens=NEW_TOKENS, **{user: make()})
    with pytest.warns(lade.FallbackWarning, match="Diary|Sentences"):
        ours = lade.generate(model, **inputs, do_sample=False, max_new_tokens=NEW_TOKENS, **{user: make()})
    assert ours.tolist() == theirs.tolist()


class Level(LogitsProcessor):
    """All tokens alike, in another precision on every so many tokens, as a user's own arithmetic may leave scores."""

    def __init__(self, dtype: torch.dtype, every: int) -> None:
        self.dtype, self.every = dtype, every

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return torch.zeros_like(scores, dtype=self.dtype if input_ids.shape[1] % self.every == 0 else scores.dtype)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize(
    ("dtype", "seed"),  # with noise in float32 each of the first alters a token
    [*((torch.bfloat16, seed) for seed in (2, 15, 21, 25, 29)), (torch.float16, 2), (torch.float64, 2)],
)
def test_scores_of_another_precision_are_sampled_in_it(dtype: torch.dtype, every: int, seed: int) -> None:
    """`torch.multinomial` draws in the precision of the probabilities: the text, and the generator behind it."""
    model, processors = tiny_model(BY_NAME["llama"]), LogitsProcessorList([Level(dtype, every)])
    kwargs = words(9) | {"do_sample": True, "max_new_tokens": 40, "logits_processor": processors}
    states, texts = [], []
    for plain in (True, False):
        torch.manual_seed(seed)
        out = model.generate(**kwargs) if plain else lade.generate(model, **kwargs, config=CONFIG)
        texts.append(out.tolist())
        states.append(torch.get_rng_state())
    assert lade.last_stats().fallback is None
    assert texts[1] == texts[0]
    assert torch.equal(states[1], states[0])
