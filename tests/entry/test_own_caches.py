"""A user's own cache in `lade.Engine.submit`: text and cache are those of `model.generate` with that cache."""

import random
from typing import Any

import pytest
import torch
from families import BY_NAME, VOCAB
from tiny import FIRST_WORD, tiny_model
from torch import Tensor
from transformers import DynamicCache, LogitsProcessor, LogitsProcessorList, StaticCache

import lade

CONFIG = lade.LookaheadConfig(mode="auto", budget=16, adapt=False)
NAMES = ("llama", "mistral-sliding", "gemma3", "gemma4", "gpt2", "gpt_oss", "llama4", "deepseek_v3")


def words(count: int, seed: int = 0) -> list[int]:
    noise = random.Random(seed)
    return [noise.randrange(FIRST_WORD, VOCAB) for _ in range(count)]


def greedy(prompt: list[int], new: int, cache: DynamicCache | None = None) -> dict[str, Any]:
    ids = torch.tensor([prompt])
    kwargs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": new, "do_sample": False}
    return kwargs if cache is None else kwargs | {"past_key_values": cache}


def assert_alike(ours: DynamicCache, theirs: DynamicCache) -> None:
    """Both are of one model and text; ours was computed in other forwards."""
    assert [type(layer) for layer in ours.layers] == [type(layer) for layer in theirs.layers]
    assert ours.get_seq_length() == theirs.get_seq_length()
    for own, stock in zip(ours.layers, theirs.layers, strict=True):
        if not hasattr(stock, "get_seq_length"):  # its keys are those of another layer
            continue
        assert own.get_seq_length() == stock.get_seq_length()
        assert own.get_mask_sizes(3) == stock.get_mask_sizes(3)
        torch.testing.assert_close(own.keys, stock.keys, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(own.values, stock.values, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("name", "begun"), [*((name, 40) for name in NAMES), (NAMES[0], 0), (NAMES[1], 0)])
def test_a_cache_is_extended_in_place(name: str, begun: int) -> None:
    """Two turns, beside other requests."""
    model = tiny_model(BY_NAME[name], BY_NAME[name].attention[-1])
    ours, theirs = (DynamicCache(config=model.config) for _ in range(2))
    text = words(begun + 9)
    if begun:
        for cache in (ours, theirs):
            model(torch.tensor([text[:begun]]), past_key_values=cache)
    with lade.Engine(model, CONFIG, slots=3) as engine:
        for turn in range(2):
            expected = model.generate(**greedy(text, 12, theirs))[0].tolist()
            neighbour = engine.submit(**greedy(words(30, seed=7), 17))
            engine.step()
            request = engine.submit(**greedy(text, 12, ours))
            layers = list(ours.layers)
            engine.run()
            assert request.tokens == expected
            assert neighbour.error is request.error is None
            assert all(now is before for now, before in zip(ours.layers, layers, strict=False))
            assert_alike(ours, theirs)
            text = expected + words(4, seed=turn)


def test_what_is_in_a_cache_is_not_computed() -> None:
    model, text = tiny_model(BY_NAME["llama"], "sdpa"), words(30)
    cache = DynamicCache(config=model.config)
    model(torch.tensor([text[:20]]), past_key_values=cache)
    with lade.Engine(model, CONFIG) as engine:
        request = engine.submit(**greedy(text, 5, cache))
        engine._loop.active += engine._loop.admission.admit()
        assert request.prefilled == 20
        engine.run()


def test_a_cache_is_no_business_of_the_tenant() -> None:
    """It may hold anything; what it holds is not kept for others."""
    model, text = tiny_model(BY_NAME["llama"], "sdpa"), words(140)
    cache = DynamicCache(config=model.config)
    model(torch.tensor([words(100, seed=1)]), past_key_values=cache)  # of another text
    with lade.Engine(model, CONFIG) as engine:
        engine.submit(**greedy(text, 5, cache), tenant="ann")
        engine.run()
        request = engine.submit(**greedy(text, 5), tenant="ann")
        engine._loop.active += engine._loop.admission.admit()
        assert request.prefilled == 0
        engine.run()
    assert request.tokens == model.generate(**greedy(text, 5))[0].tolist()


def test_a_cache_that_two_requests_were_given() -> None:
    """Both begin with what it held at first."""
    model, text = tiny_model(BY_NAME["gemma3"], "sdpa"), words(30)
    cache = DynamicCache(config=model.config)
    model(torch.tensor([text[:20]]), past_key_values=cache)
    plain = model.generate(**greedy(text, 20))[0].tolist()
    with lade.Engine(model, CONFIG, slots=1) as engine:
        requests = [engine.submit(**greedy(text, 20, cache)) for _ in range(2)]
        engine.run()
    assert [request.tokens for request in requests] == [plain] * 2
    assert cache.get_seq_length() == len(plain) - 1


class Fails(LogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        raise LookupError("no scores")


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_static_cache(name: str) -> None:
    """It is written in place; of two requests that were given it, both begin with what it held at first."""
    model, long = tiny_model(BY_NAME[name], "sdpa", torch.float64), name == "llama"
    text, new = words(30 if long else 5), 20 if long else 3
    caches = [StaticCache(model.config, max_cache_len=60) for _ in range(2)]
    for cache in caches:
        model(torch.tensor([text[: len(text) - 2]]), past_key_values=cache)
    plain = model.generate(**greedy(text, new, caches[0]))[0].tolist()
    keys = caches[1].layers[0].keys
    with lade.Engine(model, CONFIG, slots=1) as engine:
        requests = [engine.submit(**greedy(text, new, caches[1])) for _ in range(2)]
        engine.run()
    assert [request.tokens for request in requests] == [plain] * 2
    assert_alike(caches[1], caches[0])
    assert caches[1].layers[0].keys is keys


def test_a_request_that_ends_early() -> None:
    """A cancelled one leaves the tokens that were computed, one with an error leaves the cache alone."""
    model, text = tiny_model(BY_NAME["llama"], "sdpa"), words(30)
    caches = [DynamicCache(config=model.config) for _ in range(2)]
    with lade.Engine(model, CONFIG) as engine:
        cancelled = engine.submit(**greedy(text, 30, caches[0]))
        failed = engine.submit(**greedy(text, 30, caches[1]), logits_processor=LogitsProcessorList([Fails()]))
        while cancelled.emitted < 5:
            engine.step()
        engine.cancel(cancelled)
        engine.run()
    assert isinstance(failed.error, LookupError)
    assert caches[0].get_seq_length() == len(cancelled.tokens) - 1
    assert caches[1].get_seq_length() == 0
    rest = model.generate(**greedy(cancelled.tokens, 10, caches[0]))[0].tolist()
    assert rest == model.generate(**greedy(text, 10 + cancelled.emitted))[0].tolist()


class Mine(DynamicCache):
    pass


def test_wrong_caches() -> None:
    model, text = tiny_model(BY_NAME["gemma3"], "sdpa"), words(9)
    pair, long = (DynamicCache(config=model.config) for _ in range(2))
    model(torch.tensor([text[:5], text[:5]]), past_key_values=pair)
    model(torch.tensor([text]), past_key_values=long)
    wrong = {
        "past_key_values must be made with the model's config": DynamicCache(),
        "past_key_values must hold one row, got 2": pair,
        "past_key_values must hold the beginning of input_ids": long,
        "a cache of type Mine": Mine(config=model.config),
    }
    with lade.Engine(model, CONFIG) as engine:
        for message, cache in wrong.items():
            with pytest.raises(ValueError, match=message):
                engine.submit(**greedy(text, 5, cache))
        padded = greedy([0, *text], 5, DynamicCache(config=model.config))
        padded["attention_mask"][0, 0] = 0
        with pytest.raises(ValueError, match="which have no padding"):
            engine.submit(**padded)
