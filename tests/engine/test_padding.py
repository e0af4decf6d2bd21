"""Rows that end early: their caches, scores and logits are plain decoding's to the end of the longest row."""

from functools import cache
from typing import Any

import pytest
import torch
from counting import forward_widths
from families import BY_NAME
from sidebyside import PROMPTS, encode, story
from tiny import tiny_model, words
from torch import Tensor
from torch.testing import assert_close
from transformers import DynamicCache, PreTrainedModel
from untried import untried

import lade
from lade.engine import padding

CONFIG = lade.LookaheadConfig(mode="lookahead", ngram=4, window=5, guesses=5, pool_from_prompt=True)
NAMES = (
    *("llama", "gpt_bigcode", "mistral-sliding", "gpt_oss", "gemma3", "gemma4", "gpt2", "opt", "llama4"),
    *("deepseek_v3", "falcon", "qwen3_moe"),
)
LENGTHS = (12, 5, 9, 1, 7)
WIDTH = max(LENGTHS)
NEW_TOKENS = 24


def tiny(name: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    return tiny_model(BY_NAME[name], BY_NAME[name].attention[-1], dtype)


@cache
def ends_of(model: PreTrainedModel) -> tuple[int, int]:
    """Tokens that end the first two rows within their texts, at different times."""
    with torch.inference_mode():  # the same in less time
        text = model.generate(**words(*LENGTHS), do_sample=False, max_new_tokens=15)[:, WIDTH:]
    return int(text[0, 6]), int(text[1, 14])


def ending(model: PreTrainedModel, **kwargs: Any) -> dict[str, Any]:
    """A batch whose rows end at different times."""
    settings = {"do_sample": False, "max_new_tokens": NEW_TOKENS, "eos_token_id": list(ends_of(model))}
    return words(*LENGTHS) | settings | kwargs


def pair(model: PreTrainedModel, own: bool = False, **kwargs: Any) -> tuple[Any, Any]:
    """Plain decoding's result and ours; `own`: the caller's cache is extended, and stands in the result here."""
    results = []
    for plain in (True, False):
        cache = {"past_key_values": DynamicCache(config=model.config)} if own else {}
        torch.manual_seed(7)
        asked = {"return_dict_in_generate": True} | kwargs | cache
        out = model.generate(**asked) if plain else lade.generate(model, **asked, config=CONFIG)
        assert out.past_key_values is cache.get("past_key_values", out.past_key_values)
        results.append(out)
    assert lade.last_stats().fallback is None
    assert results[1].sequences.tolist() == results[0].sequences.tolist()
    return results[0], results[1]


def row_ends(text: Tensor, ends: list[int], width: int = WIDTH) -> list[int]:
    new = text[:, width:].tolist()
    return [next((i + 1 for i, token in enumerate(row) if token in ends), len(row)) for row in new]


def assert_same_cache(ours: DynamicCache, theirs: DynamicCache, **close: float) -> None:
    assert ours.get_seq_length() == theirs.get_seq_length()
    for own, stock in zip(ours.layers, theirs.layers, strict=True):
        assert type(own) is type(stock)
        if isinstance(getattr(stock, "keys", None), Tensor):
            assert_close(own.keys, stock.keys, **close)
            assert_close(own.values, stock.values, **close)


# The cache


@pytest.mark.compat
@pytest.mark.parametrize(
    ("name", "own"),
    [*((name, False) for name in NAMES), *((name, True) for name in ("llama", "mistral-sliding", "gpt2"))],
)
def test_cache_is_plain_decoding_s(name: str, own: bool) -> None:
    """Keys and values of end tokens and of the padding behind them, and so the text of a second turn."""
    model = tiny(name)
    first = ending(model)
    theirs, ours = pair(model, own, **first)
    assert len(set(row_ends(theirs.sequences, first["eos_token_id"]))) > 2
    assert_same_cache(ours.past_key_values, theirs.past_key_values, rtol=1e-4, atol=1e-4)
    seen = torch.zeros_like(theirs.sequences)  # padding is masked, end tokens are not
    for row, end in enumerate(row_ends(theirs.sequences, first["eos_token_id"])):
        seen[row, : WIDTH + end] = 1
    seen[:, :WIDTH] = first["attention_mask"]
    said = words(*[4] * len(LENGTHS), seed=3)["input_ids"]
    second = {
        "input_ids": torch.cat([theirs.sequences, said], dim=1),
        "attention_mask": torch.cat([seen, torch.ones_like(said)], dim=1),
    }
    later = [
        generate(**second, past_key_values=out.past_key_values, do_sample=False, max_new_tokens=12).tolist()
        for generate, out in ((model.generate, theirs), (model.generate, ours))
    ]
    assert later[0] == later[1]


@pytest.mark.parametrize("name", ["llama", "mistral-sliding", "gemma3", "gpt2", "opt"])
def test_cache_in_float64(name: str) -> None:
    model = tiny(name, torch.float64)
    theirs, ours = pair(model, **ending(model))
    assert_same_cache(ours.past_key_values, theirs.past_key_values, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["llama", "mistral-sliding"])
def test_two_turns_with_lade_in_one_cache(name: str) -> None:
    """A user's own cache, extended by both turns."""
    model = tiny(name)
    texts = []
    for generate in (model.generate, lambda **kwargs: lade.generate(model, config=CONFIG, **kwargs)):
        cache, kwargs = DynamicCache(config=model.config), ending(model)
        text = generate(**kwargs, past_key_values=cache)
        mask = torch.cat([kwargs["attention_mask"], torch.ones_like(text[:, WIDTH:])], dim=1)
        said = words(*[3] * len(LENGTHS), seed=5)["input_ids"]
        kwargs |= {
            "input_ids": torch.cat([text, said], dim=1),
            "attention_mask": torch.cat([mask, torch.ones_like(said)], dim=1),
        }
        texts.append(generate(**kwargs, past_key_values=cache).tolist())
    assert texts[0] == texts[1]


@pytest.mark.parametrize("pad", ["the end token", "another token"])
def test_padding_tokens_of_any_kind(pad: str) -> None:
    model = tiny("llama")
    kwargs = ending(model)
    kwargs["pad_token_id"] = kwargs["eos_token_id"][0] if pad == "the end token" else 17
    theirs, ours = pair(model, **kwargs, output_logits=True)
    assert_same_cache(ours.past_key_values, theirs.past_key_values, rtol=1e-4, atol=1e-4)
    assert_close(ours.logits, theirs.logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "mistral-sliding", "gpt2"])
def test_long_tails_take_several_forwards(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padding, "CHAIN", 3)
    model = tiny(name)
    theirs, ours = pair(model, **ending(model), output_scores=True)
    assert_same_cache(ours.past_key_values, theirs.past_key_values, rtol=1e-4, atol=1e-4)
    assert_close(ours.scores, theirs.scores, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "opt"])
def test_to_the_last_position(name: str) -> None:
    """A row that has ended goes on to the last position of a learned table beside one that fills it."""
    model = tiny(name)
    batch = words(240, 231)
    text = model.generate(**batch, do_sample=False, max_new_tokens=17)[:, 240:]
    end = next(token for token in text[0].tolist() if token not in text[1].tolist())
    kwargs = batch | {"do_sample": False, "max_new_tokens": 17, "eos_token_id": end}
    theirs, ours = pair(model, **kwargs)
    assert theirs.sequences.shape[1] == 257
    assert_same_cache(ours.past_key_values, theirs.past_key_values, rtol=1e-4, atol=1e-4)


# Scores and logits


@pytest.mark.compat
@pytest.mark.parametrize("sampled", [False, True], ids=("greedy", "sampled"))
@pytest.mark.parametrize("name", ["llama", "mistral-sliding", "gemma3", "gpt2"])
def test_scores_behind_the_end_are_computed(name: str, sampled: bool) -> None:
    """Processors see the padding too, and transition scores are plain decoding's."""
    model = tiny(name)
    more = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 3}
    if sampled:
        more |= {"do_sample": True, "temperature": 0.7, "top_k": 20}
    asked = {"output_scores": True, "output_logits": True}
    theirs, ours = pair(model, **ending(model) | more | asked)
    assert len(ours.scores) == len(ours.logits) == len(theirs.scores)
    assert_close(ours.scores, theirs.scores, rtol=1e-4, atol=1e-4)
    assert_close(ours.logits, theirs.logits, rtol=1e-4, atol=1e-4)
    transitions = [
        model.compute_transition_scores(out.sequences, out.scores, normalize_logits=normalize)
        for out in (theirs, ours)
        for normalize in (True, False)
    ]
    assert_close(transitions[2:], transitions[:2], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("asked", ["output_scores", "output_logits"])
def test_rows_that_end_by_a_stop_string(asked: str) -> None:
    model, tokenizer = story()
    kwargs = encode(*PROMPTS) | {"stop_strings": ["."], "tokenizer": tokenizer, "eos_token_id": 2, asked: True}
    kwargs |= {"pad_token_id": tokenizer.pad_token_id, "do_sample": False, "max_new_tokens": 64}
    theirs, ours = pair(model, **kwargs)
    assert (theirs.sequences[:, -2:] == tokenizer.pad_token_id).any()
    assert_same_cache(ours.past_key_values, theirs.past_key_values, rtol=1e-4, atol=1e-4)
    name = asked.removeprefix("output_")
    assert_close(getattr(ours, name), getattr(theirs, name), rtol=1e-4, atol=1e-4)


# Methods, and what it costs


@pytest.mark.parametrize("name", ["llama", "mistral-sliding"])
@pytest.mark.parametrize("method", ["draft", "self"])
def test_with_a_model_that_drafts(method: str, name: str) -> None:
    model = tiny(name)
    kwargs = ending(model, return_dict_in_generate=True, output_scores=True)
    theirs = model.generate(**kwargs)
    drafting = lade.DraftModel(tiny("llama")) if method == "draft" else lade.SelfSpeculative(((1,), ()))
    ours = lade.generate(model, **kwargs, method=drafting)
    assert lade.last_stats().fallback is None
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    assert_same_cache(ours.past_key_values, theirs.past_key_values, rtol=1e-4, atol=1e-4)
    assert_close(ours.scores, theirs.scores, rtol=1e-4, atol=1e-4)


def test_contrastive_rows_go_on_in_both_models() -> None:
    """An amateur without weight changes nothing: the cache, and the scores up to a constant, are the expert's."""
    model = tiny("llama")
    kwargs = ending(model, return_dict_in_generate=True, output_scores=True)
    theirs = model.generate(**kwargs)
    ours = lade.generate(model, **kwargs, contrast=lade.Contrast(tiny("gpt2"), weight=0.0, alpha=0.0), config=CONFIG)
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    assert_same_cache(ours.past_key_values, theirs.past_key_values, rtol=1e-4, atol=1e-4)
    expected = [scores.log_softmax(-1) for scores in theirs.scores]
    assert_close(list(ours.scores), expected, rtol=1e-4, atol=1e-4)


def forwards(model: PreTrainedModel, **kwargs: Any) -> int:
    """How many forwards a call takes, the prefill included."""
    with forward_widths(model) as widths:
        lade.generate(model, **kwargs, config=CONFIG)
    return len(widths)


@untried()
def test_one_more_forward_only_where_the_cache_is_seen() -> None:
    model = tiny("llama")
    kwargs = ending(model)
    lade.generate(model, **kwargs, config=CONFIG)  # the probe is over
    unseen, before = forwards(model, **kwargs), lade.last_stats()
    assert forwards(model, **kwargs, return_dict_in_generate=True) == unseen + 1
    assert forwards(model, **kwargs, past_key_values=DynamicCache(config=model.config)) == unseen + 1
    after = lade.last_stats()
    assert (after.steps, after.forward_tokens, after.widths) == (before.steps, before.forward_tokens, before.widths)
    assert after.attention == before.attention
    assert after.new_tokens == after.rows + after.steps + after.accepted_tokens
    together = words(9, 9) | {"do_sample": False, "max_new_tokens": 12}
    unseen = forwards(model, **together)
    assert forwards(model, **together, return_dict_in_generate=True) == unseen
