"""Contrastive decoding under drafts: the text of the paper's rule, token by token, whatever is drafted."""

import copy
import warnings
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from counting import forward_widths
from families import BY_NAME, VOCAB
from hypothesis import given, settings
from hypothesis import strategies as st
from onebyone import Reference, Rule, assert_texts, contrastive
from sidebyside import story
from tiny import tiny_model, words
from torch import Tensor
from transformers import DynamicCache, GenerationMixin, LogitsProcessor, PreTrainedModel
from unbranchable import UNBRANCHABLE

import lade
from lade.pace.costfile import cost_file
from lade.pace.shared import shared_cost
from lade.target.contrastive import ContrastiveTarget

WINDOW = lade.LookaheadConfig(mode="lookahead", ngram=4, window=5, guesses=5, pool_from_prompt=True)
AUTO = lade.LookaheadConfig(adapt=False, budget=24)
ONE_TOKEN = lade.LookaheadConfig(budget=1)
CONFIGS = {"window": WINDOW, "auto": AUTO, "one token": ONE_TOKEN}
# expert, its attention, amateur, its attention: every pair differs in family or backend
PAIRS = (
    ("llama", "sdpa", "qwen2", "eager"),
    ("gpt2", "eager", "llama", "sdpa"),
    ("gemma3", "sdpa", "mistral-sliding", "eager"),
    ("opt", "sdpa", "llama", "eager"),
    ("deepseek_v3", "eager", "gpt2", "sdpa"),
    ("llama4", "sdpa", "gpt_neox", "sdpa"),
)
ALONE, PADDED = (9,), (5, 9, 2)
TOKENS = 14
GREEDY = Rule(weight=1.0, amateur_temperature=0.8, alpha=0.1)
SAMPLED = Rule(weight=1.0, amateur_temperature=1.5, alpha=0.05, temperature=0.7, top_k=8)


def tiny(name: str, attention: str = "sdpa", dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    return tiny_model(BY_NAME[name], attention, dtype)


def contrast_of(amateur: PreTrainedModel, rule: Rule) -> lade.Contrast:
    return lade.Contrast(amateur, rule.weight, rule.amateur_temperature, rule.alpha)


def choosing(rule: Rule) -> dict[str, Any]:
    if not rule.temperature:
        return {"do_sample": False}
    return {"do_sample": True, "temperature": rule.temperature, "top_k": rule.top_k}


def prompts(batch: dict[str, Tensor]) -> list[Tensor]:
    return [row[mask.bool()] for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)]


def tiny_pair(lengths: tuple[int, ...], pair: tuple[str, str, str, str]) -> tuple[PreTrainedModel, PreTrainedModel]:
    """In float64 where padding works there (`lade.facts.precision.padding_works`)."""
    padded = len(set(lengths)) > 1
    dtypes = [torch.float32 if padded and attention == "eager" else torch.float64 for attention in pair[1::2]]
    return tiny(pair[0], pair[1], dtypes[0]), tiny(pair[2], pair[3], dtypes[1])


# Identity


@cache
def one_by_one(pair: tuple[str, str, str, str], lengths: tuple[int, ...], rule: Rule) -> tuple[Reference, Tensor]:
    """The text, and the state in which it leaves the generator."""
    torch.manual_seed(7)
    return contrastive(*tiny_pair(lengths, pair), prompts(words(*lengths)), TOKENS, rule), torch.get_rng_state()


@pytest.mark.parametrize(
    ("pair", "config", "lengths", "rule"),
    [
        *product(PAIRS[:1], CONFIGS.values(), (ALONE, PADDED), (GREEDY, SAMPLED)),
        *((pair, WINDOW, *case) for pair in PAIRS[1:] for case in ((ALONE, GREEDY), (PADDED, SAMPLED))),
        *((pair, AUTO, *case) for pair in PAIRS[1:] for case in ((ALONE, SAMPLED), (PADDED, GREEDY))),
    ],
)
def test_same_text_as_one_by_one(
    pair: tuple[str, str, str, str], config: lade.LookaheadConfig, lengths: tuple[int, ...], rule: Rule
) -> None:
    expert, amateur = tiny_pair(lengths, pair)
    batch = words(*lengths)
    reference, state = one_by_one(pair, lengths, rule)
    torch.manual_seed(7)
    asked = {"config": config, "contrast": contrast_of(amateur, rule), "max_new_tokens": TOKENS}
    ours = lade.generate(expert, **batch, **asked, **choosing(rule))
    assert_texts(ours, max(lengths), reference, exact=expert.dtype == amateur.dtype == torch.float64)
    assert torch.equal(torch.get_rng_state(), state)
    stats = lade.last_stats()
    assert stats.fallback is None
    assert stats.new_tokens == TOKENS * len(lengths)
    assert config is not ONE_TOKEN or stats.forward_tokens == stats.steps == (TOKENS - 1) * len(lengths)


@pytest.mark.parametrize("untimed", [(False, False), (True, False), (False, True)])
def test_a_step_counts_as_timed_where_it_does_in_both_models(untimed: tuple[bool, bool]) -> None:
    expert, amateur = (SimpleNamespace(clock=None, vocabulary=9, packed=True, untimed=each) for each in untimed)
    target = ContrastiveTarget(expert, amateur, None, None)  # type: ignore[arg-type]
    assert target.untimed == any(untimed)


def test_drafts_are_accepted() -> None:
    """Else the tests above would say nothing about drafts."""
    pair, steps = tiny_pair((9,), PAIRS[0]), {}
    for name, config in CONFIGS.items():
        asked = {"config": config, "contrast": contrast_of(pair[1], GREEDY), "do_sample": False}
        lade.generate(pair[0], **words(9), **asked, max_new_tokens=64)
        steps[name] = lade.last_stats().steps
    assert steps["one token"] == 63
    assert max(steps["window"], steps["auto"]) < 50


def weakened(model: PreTrainedModel) -> PreTrainedModel:
    """A worse copy: its weights blurred a little, always alike."""
    copied = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in copied.parameters():
            if parameter.dim() > 1:
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
                parameter.add_(0.2 * parameter.std() * noise.to(parameter.dtype))
    return copied


STORIES = ("Once upon a time, there was a little girl named Lily.", "Tom had a dog", "One day, a bird saw a big")


@pytest.mark.parametrize(("count", "dtype"), [(1, torch.float32), (3, torch.float64)], ids=("alone", "exact"))
@pytest.mark.parametrize("rule", [Rule(weight=0.5), Rule(weight=0.5, temperature=1.0)], ids=("greedy", "sampled"))
def test_trained_expert(rule: Rule, count: int, dtype: torch.dtype) -> None:
    model, tokenizer = story()
    expert = copy.deepcopy(model).to(dtype)
    amateur = weakened(expert)
    batch = tokenizer(list(STORIES[:count]), return_tensors="pt", padding=True)
    batch = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    torch.manual_seed(1)
    reference = contrastive(expert, amateur, prompts(batch), 24, rule, ends=(2,))
    asked = {"contrast": contrast_of(amateur, rule), "max_new_tokens": 24, "eos_token_id": 2, "pad_token_id": 0}
    accepted = 0
    for config in (WINDOW, AUTO):
        torch.manual_seed(1)
        ours = lade.generate(expert, **batch, **asked, config=config, **choosing(rule))
        assert_texts(ours, batch["input_ids"].shape[1], reference, exact=dtype == torch.float64)
        accepted += lade.last_stats().accepted_tokens
    assert accepted > 0 or count == 1
    plain = expert.generate(**batch, do_sample=False, max_new_tokens=24, eos_token_id=2, pad_token_id=0)
    assert ours.tolist() != plain.tolist()


@settings(max_examples=12)
@given(st.integers(0, 2**16), st.floats(0, 2), st.sampled_from([0.0, 0.001, 0.1, 1.0]), st.sampled_from([0.0, 0.5]))
def test_any_rule(seed: int, weight: float, alpha: float, temperature: float) -> None:
    expert, amateur = tiny("llama"), tiny("gpt2")
    rule = Rule(weight, 1.0, alpha, temperature, 0)
    batch = words(6, seed=seed)
    torch.manual_seed(seed)
    reference = contrastive(expert, amateur, prompts(batch), 16, rule)
    torch.manual_seed(seed)
    asked = {"contrast": contrast_of(amateur, rule), "config": AUTO, "max_new_tokens": 16}
    ours = lade.generate(expert, **batch, **asked, **choosing(rule))
    assert_texts(ours, 6, reference, exact=True)


@pytest.mark.compat
def test_nothing_to_contrast() -> None:
    """Weight 0 and alpha 0 leave the expert's own distribution; alpha 1 its greedy text, sampled or not."""
    expert, amateur, batch = tiny("llama"), tiny("gpt2"), words(5, 9, 3)
    sampled = {"do_sample": True, "temperature": 0.8, "top_k": 0, "max_new_tokens": TOKENS}
    torch.manual_seed(2)
    plain = expert.generate(**batch, **sampled)
    torch.manual_seed(2)
    ours = lade.generate(expert, **batch, **sampled, contrast=lade.Contrast(amateur, weight=0, alpha=0))
    assert ours.tolist() == plain.tolist()
    greedy = expert.generate(**batch, do_sample=False, max_new_tokens=TOKENS)
    only = lade.Contrast(amateur, weight=3.0, alpha=1.0)
    assert lade.generate(expert, **batch, **sampled, contrast=only).tolist() == greedy.tolist()


def test_model_against_itself() -> None:
    """Its own amateur at another temperature; both parts keep caches of their own."""
    model, batch, rule = tiny("gemma3"), words(9), Rule(weight=0.5, amateur_temperature=2.0)
    reference = contrastive(model, model, prompts(batch), TOKENS, rule)
    asked = {"contrast": contrast_of(model, rule), "config": WINDOW, "do_sample": False}
    assert_texts(lade.generate(model, **batch, **asked, max_new_tokens=TOKENS), 9, reference, exact=True)


@pytest.mark.compat
def test_rows_end_at_different_times() -> None:
    expert, amateur, batch = tiny("llama"), tiny("gpt2"), words(5, 9, 3)
    whole = contrastive(expert, amateur, prompts(batch), TOKENS, GREEDY)
    ends = (whole.texts[0][6], whole.texts[1][11])
    reference = contrastive(expert, amateur, prompts(batch), TOKENS, GREEDY, ends)
    asked = {"contrast": contrast_of(amateur, GREEDY), "config": WINDOW, "do_sample": False}
    ours = lade.generate(expert, **batch, **asked, max_new_tokens=TOKENS, eos_token_id=list(ends))
    assert len(set(map(len, reference.texts))) > 1
    assert_texts(ours, 9, reference, exact=True)


def test_padded_vocabulary() -> None:
    """An amateur with logits for more tokens than there are, and none of them chosen."""
    expert, small, batch = tiny("llama"), tiny("qwen2"), words(9)
    amateur = copy.deepcopy(small)
    amateur.resize_token_embeddings(VOCAB + 7, mean_resizing=False)
    with torch.no_grad():
        amateur.get_output_embeddings().weight[VOCAB:] = 5.0
    reference = contrastive(expert, small, prompts(batch), TOKENS, GREEDY)
    contrast = lade.Contrast(amateur, GREEDY.weight, GREEDY.amateur_temperature, GREEDY.alpha, vocabulary=VOCAB)
    ours = lade.generate(expert, **batch, contrast=contrast, do_sample=False, max_new_tokens=TOKENS)
    assert_texts(ours, 9, reference, exact=True)


# Outputs, processors, caches, statistics


class Recorder(LogitsProcessor):
    """Remembers what it was handed."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.seen.append(scores[0].clone())
        return scores


def test_scores_and_logits_are_the_combined_ones() -> None:
    expert, amateur, batch, recorder = tiny("llama"), tiny("gpt2"), words(9), Recorder()
    reference = contrastive(expert, amateur, prompts(batch), 12, GREEDY)
    out = lade.generate(
        expert,
        **batch,
        contrast=contrast_of(amateur, GREEDY),
        logits_processor=[recorder],
        do_sample=False,
        max_new_tokens=12,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
    )
    for given_rows in (out.scores, out.logits, [row[None] for row in recorder.seen]):
        assert len(given_rows) == 12
        for row, expected in zip(given_rows, reference.scores[0], strict=True):
            plausible = expected.isfinite()
            torch.testing.assert_close(row[0][plausible], expected[plausible].float())
            assert (row[0][~plausible] < -900).all()


def test_processors_may_forbid_all_that_is_plausible() -> None:
    """The expert's likeliest token that is left is next, not whichever has the lowest id."""
    expert, amateur, batch = tiny("llama"), tiny("gpt2"), words(9)
    with torch.no_grad():
        best = expert(batch["input_ids"]).logits[0, -1].topk(3).indices.tolist()
    contrast = lade.Contrast(amateur, alpha=1.0)
    asked = {"contrast": contrast, "do_sample": False, "max_new_tokens": 1}
    ours = lade.generate(expert, **batch, **asked, suppress_tokens=best[:2])
    assert ours[0, -1] == best[2]


@pytest.mark.compat
def test_the_experts_cache_is_returned_and_goes_on() -> None:
    expert, amateur, text = tiny("gemma3"), tiny("llama"), words(9)["input_ids"]
    asked = {"contrast": contrast_of(amateur, GREEDY), "config": WINDOW, "do_sample": False}
    ones = torch.ones_like
    at_once = lade.generate(expert, text, attention_mask=ones(text), **asked, max_new_tokens=40)
    kwargs = {"return_dict_in_generate": True, "max_new_tokens": 20}
    first = lade.generate(expert, text, attention_mask=ones(text), **asked, **kwargs)
    assert type(first.past_key_values) is DynamicCache
    assert first.past_key_values.get_seq_length() == first.sequences.shape[1] - 1
    second = lade.generate(
        expert,
        first.sequences,
        attention_mask=ones(first.sequences),
        past_key_values=first.past_key_values,
        **asked,
        max_new_tokens=20,
    )
    assert second.tolist() == at_once.tolist()


def test_the_whole_text_is_needed_beside_a_cache() -> None:
    expert, text = tiny("llama"), words(9)["input_ids"]
    cache = DynamicCache(config=expert.config)
    expert.generate(text, past_key_values=cache, max_new_tokens=4, do_sample=False)
    rest, mask = text[:, -1:], torch.ones(1, cache.get_seq_length() + 1, dtype=torch.long)
    with pytest.raises(ValueError, match=r"input_ids must hold the whole text .*, got its last 1 tokens"):
        lade.generate(
            expert,
            rest,
            attention_mask=mask,
            past_key_values=cache,
            contrast=lade.Contrast(tiny("gpt2")),
            do_sample=False,
            max_new_tokens=4,
        )


def test_one_step_is_one_forward_of_each() -> None:
    expert, amateur = copy.deepcopy(tiny("llama")), copy.deepcopy(tiny("gpt2"))
    contrast = contrast_of(amateur, GREEDY)
    with forward_widths(expert) as own, forward_widths(amateur) as theirs:
        lade.generate(expert, **words(9), contrast=contrast, config=WINDOW, do_sample=False, max_new_tokens=TOKENS)
    stats = lade.last_stats()
    assert [len(own), len(theirs)] == [1 + stats.steps] * 2
    assert stats.prefill_seconds > 0
    assert stats.model_seconds > 0


# Ways in


@pytest.mark.compat
def test_scope_and_decoding_method() -> None:
    expert, amateur, batch = tiny("llama"), tiny("gpt2"), words(9)
    contrast, kwargs = contrast_of(amateur, GREEDY), {"do_sample": False, "max_new_tokens": TOKENS}
    expected = lade.generate(expert, **batch, **kwargs, contrast=contrast).tolist()
    plain = expert.generate(**batch, **kwargs).tolist()
    assert expected != plain
    with lade.lookahead(expert, contrast=contrast):
        assert expert.generate(**batch, **kwargs).tolist() == expected
        with lade.lookahead(expert):
            assert expert.generate(**batch, **kwargs).tolist() == plain
    assert expert.generate(**batch, **kwargs).tolist() == plain
    method = lade.decoding_method(contrast=contrast)
    assert expert.generate(**batch, **kwargs, custom_generate=method).tolist() == expected


OTHER_METHODS: dict[str, dict[str, Any]] = {
    "beams": {"num_beams": 2},
    "prompt lookup": {"prompt_lookup_num_tokens": 3},
}


@pytest.mark.compat
@pytest.mark.parametrize("asked", OTHER_METHODS.values(), ids=OTHER_METHODS)
def test_other_methods_are_refused_inside_the_scope_alone(asked: dict[str, Any]) -> None:
    expert, other, contrast = tiny("llama"), tiny("qwen2"), lade.Contrast(tiny("gpt2"))
    before = {name: GenerationMixin.__dict__[name] for name in ("_sample", "_beam_search", "_assisted_decoding")}
    kwargs = words(9) | asked | {"do_sample": False, "max_new_tokens": 6}
    expected = [model.generate(**kwargs).tolist() for model in (expert, other)]
    with lade.lookahead(expert, contrast=contrast):
        with pytest.raises(ValueError, match="not available: contrastive decoding"):
            expert.generate(**kwargs)
        assert other.generate(**kwargs).tolist() == expected[1]
        with lade.lookahead(expert):  # the innermost scope counts
            assert expert.generate(**kwargs).tolist() == expected[0]
    assert {name: GenerationMixin.__dict__[name] for name in before} == before
    assert expert.generate(**kwargs).tolist() == expected[0]


# What is refused


def refused(expert: PreTrainedModel, amateur: PreTrainedModel, match: str, **kwargs: Any) -> None:
    """By an error and nothing else: no plain text, no warning, no statistics."""
    calls = len(lade.log_history())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=match):
            lade.generate(
                expert,
                **(words(9) | {"do_sample": False, "max_new_tokens": 8} | kwargs),
                contrast=lade.Contrast(amateur),
            )
    assert len(lade.log_history()) == calls


@pytest.mark.parametrize("kind", UNBRANCHABLE, ids=lambda kind: kind.name)
def test_unbranchable_models(kind: Any) -> None:
    odd, usual = tiny_model(kind, kind.attention[0]), tiny("llama", dtype=torch.float32)
    if odd.config.is_encoder_decoder or odd.config.get_text_config().vocab_size != VOCAB:
        pytest.skip("no causal language model of the usual vocabulary")
    refused(usual, odd, "because of the amateur: ", max_new_tokens=60)
    refused(odd, usual, "because of the model: ", max_new_tokens=60)


def test_other_vocabulary_names_both_sizes() -> None:
    amateur = copy.deepcopy(tiny("llama"))
    amateur.resize_token_embeddings(VOCAB + 7, mean_resizing=False)
    match = f"amateur has a vocabulary of {VOCAB + 7} tokens and the model one of {VOCAB}"
    refused(tiny("qwen2"), amateur, match)
    with pytest.raises(ValueError, match=match), lade.lookahead(tiny("qwen2"), contrast=lade.Contrast(amateur)):
        pass
    with pytest.raises(ValueError, match=rf"^contrast\.vocabulary must be at most {VOCAB}, .*, got 80$"):
        lade.generate(tiny("qwen2"), **words(9), contrast=lade.Contrast(amateur, vocabulary=80))


def test_amateur_in_training() -> None:
    refused(tiny("llama"), copy.deepcopy(tiny("gpt2")).train(), "the amateur: the model is in training mode")


def test_amateur_with_fewer_positions() -> None:
    amateur = copy.deepcopy(tiny("gpt2"))
    amateur.config.n_positions = 32
    refused(tiny("llama"), amateur, "the text must fit the amateur's 32 positions, got 39 tokens", max_new_tokens=30)
    lade.generate(tiny("llama"), **words(9), contrast=lade.Contrast(amateur), max_new_tokens=23)


def test_beams_and_batches_with_unknown_processors() -> None:
    refused(tiny("llama"), tiny("gpt2"), "num_beams must be 1", num_beams=2)
    refused(tiny("llama"), tiny("gpt2"), "Recorder is not known", **words(5, 5), logits_processor=[Recorder()])


def test_decoding_method_checks_its_argument() -> None:
    with pytest.raises(ValueError, match=r"contrast must be a lade\.Contrast or None, got 'x'"):
        lade.decoding_method(contrast="x")


def test_steps_of_two_models_are_not_taken_for_steps_of_one(
    table_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they cost is learned apart from what the model costs alone, and is not kept for later processes."""
    expert, amateur, other = (copy.deepcopy(tiny(name)) for name in ("llama", "gpt2", "llama"))
    contrast, kwargs = contrast_of(amateur, GREEDY), {"do_sample": False, "max_new_tokens": TOKENS}
    monkeypatch.setattr("lade.pace.shared.FIRST_SAVE", 1)
    lade.generate(expert, **words(9), contrast=contrast, **kwargs)
    assert not cost_file(expert).exists()
    assert not shared_cost(expert).known(1, 9, 1)
    assert shared_cost(expert, amateur).cost._steps > 0
    assert shared_cost(expert, amateur) is not shared_cost(expert, other)
    lade.generate(expert, **words(9), **kwargs)
    assert cost_file(expert).exists()
