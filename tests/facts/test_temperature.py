"""Llama 4 scales queries by the index in the cache: trees get the temperature of their nodes' places in the text."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from families import BY_NAME
from identity import Identity, PlainText, plain_text
from sidebyside import assert_falls_back
from tiny import tiny_model, words
from transformers import PreTrainedModel

import lade
from lade.facts.temperature import changes, follows_index

TUNINGS = [(24, 0.1), (2, 0.1), (24, 2.0), (5, 1.0), (8192, 0.1)]
CONFIGS = {
    "paper": lade.LookaheadConfig(mode="lookahead", ngram=4, window=6, guesses=6, pool_from_prompt=True),
    "auto": lade.LookaheadConfig(mode="auto", budget=32, adapt=False),
}


@cache
def llama4(floor_scale: float = 24, attn_scale: float = 2.0, attention: str = "sdpa") -> PreTrainedModel:
    family = BY_NAME["llama4"]
    tuned = {"attn_temperature_tuning": True, "floor_scale": floor_scale, "attn_scale": attn_scale}
    return tiny_model(
        replace(family, name=f"llama4-{floor_scale}-{attn_scale}", config=family.config | tuned), attention
    )


@cache
def plain_of(tuning: tuple[float, float], length: int, seed: int) -> PlainText:
    return plain_text(llama4(*tuning), **words(length, seed=seed), max_new_tokens=40)


def assert_native(model: PreTrainedModel, identity: Identity, config: Any, prompt: Any, **kwargs: Any) -> None:
    kwargs = {"max_new_tokens": 40, "do_sample": False} | kwargs
    ours = lade.generate(model, **prompt, config=config, **kwargs)
    kwargs.pop("do_sample")
    identity.check(ours, plain_text(model, **prompt, **kwargs))
    assert lade.last_stats().fallback is None
    assert lade.last_stats().forward_tokens > lade.last_stats().steps


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("tuning", TUNINGS, ids=str)
def test_texts_across_the_steps_of_the_temperature(tuning: Any, config: Any, identity: Identity) -> None:
    for length, seed in ((3, 0), (9, 1), (22, 0)):
        prompt = words(length, seed=seed)
        ours = lade.generate(llama4(*tuning), **prompt, config=config, max_new_tokens=40, do_sample=False)
        identity.check(ours, plain_of(tuning, length, seed))
        assert lade.last_stats().fallback is None
        assert lade.last_stats().forward_tokens > lade.last_stats().steps


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_padded_prompt(attention: str, identity: Identity) -> None:
    """Padding counts in the cache's index."""
    ids = words(9, 20)
    alone = {name: tensor[:1] for name, tensor in ids.items()}
    assert_native(llama4(attention=attention), identity, CONFIGS["auto"], alone)


def test_chunks_of_the_prompt(identity: Identity) -> None:
    assert_native(llama4(), identity, CONFIGS["auto"], words(30), prefill_chunk_size=7)


def test_sampling() -> None:
    kwargs = words(9) | {"do_sample": True, "temperature": 0.5, "max_new_tokens": 40}
    torch.manual_seed(1)
    expected = llama4().generate(**kwargs)
    torch.manual_seed(1)
    assert lade.generate(llama4(), **kwargs, config=CONFIGS["auto"]).tolist() == expected.tolist()
    assert lade.last_stats().fallback is None


def test_itself_as_the_draft(identity: Identity) -> None:
    method = lade.SelfSpeculative(((), (0,)), adapt="fixed")
    kwargs = words(9) | {"max_new_tokens": 40}
    identity.check(lade.generate(llama4(), **kwargs, do_sample=False, method=method), plain_text(llama4(), **kwargs))
    assert lade.last_stats().fallback is None


def test_as_a_draft_model(identity: Identity) -> None:
    model, kwargs = tiny_model(BY_NAME["llama"], "sdpa"), words(5, 9)
    method = lade.DraftModel(llama4(4096, 1.0), tokens=4)
    ours = lade.generate(model, **kwargs, do_sample=False, max_new_tokens=30, method=method)
    identity.check(ours, plain_text(model, **kwargs, max_new_tokens=30))
    assert lade.last_stats().fallback is None


def test_batches_between_two_steps(identity: Identity) -> None:
    assert_native(llama4(64, 2.0), identity, CONFIGS["auto"], words(5, 9, 3))
    assert_native(llama4(30, 2.0), identity, CONFIGS["auto"], words(31, 9, 3), max_new_tokens=25)


@pytest.mark.parametrize(("longest", "native"), [(24, True), (25, False)])
def test_batches_across_a_step(longest: int, native: bool) -> None:
    def inputs() -> dict[str, Any]:
        return words(5, 9, 3) | {"do_sample": False, "max_length": longest}

    if native:
        expected = llama4().generate(**inputs())
        assert lade.generate(llama4(), **inputs()).tolist() == expected.tolist()
        assert lade.last_stats().fallback is None
    else:
        assert_falls_back(llama4(), inputs, "attention temperature")


def test_a_batch_that_goes_on_from_a_cache() -> None:
    """Its index begins behind what is cached."""

    def inputs() -> dict[str, Any]:
        first = llama4().generate(**words(5, 9), max_new_tokens=8, do_sample=False, return_dict_in_generate=True)
        ids = torch.cat([first.sequences, words(6, 6)["input_ids"]], dim=1)
        mask = torch.cat([words(5, 9)["attention_mask"], torch.ones(2, 14, dtype=torch.long)], dim=1)
        more = {"past_key_values": first.past_key_values, "max_new_tokens": 12, "do_sample": False}
        return {"input_ids": ids, "attention_mask": mask} | more

    assert_falls_back(llama4(), inputs, "attention temperature")


def test_which_models_follow_the_index() -> None:
    config = llama4().config
    assert follows_index(config)
    assert [
        changes(config, first, last) for first, last in [(0, 22), (0, 23), (23, 46), (22, 23), (0, float("inf"))]
    ] == [
        False,
        True,
        False,
        True,
        True,
    ]
    assert not follows_index(llama4(24, 0.0).config)
    assert not follows_index(tiny_model(BY_NAME["llama"], "sdpa").config)
