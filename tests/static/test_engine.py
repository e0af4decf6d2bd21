"""`lade.Engine` on static steps: its texts are plain decoding's, and so is what is kept of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from enginetexts import greedy, model_of, plain, words
from tiny import own_llama
from transformers import DynamicCache, PreTrainedModel

import lade
from lade.core.request import Request
from lade.static import chosen, lasting, shelf

CONFIG = lade.LookaheadConfig(static=True, adapt=False, budget=12)
CHUNK = 64  # tokens of a kept prefix


@contextmanager
def opened(model: PreTrainedModel, config: lade.LookaheadConfig = CONFIG, **kwargs: Any) -> Iterator[lade.Engine]:
    with lade.Engine(model, config, **{"slots": 4, **kwargs}) as engine:
        assert engine.not_static is None
        yield engine
        assert engine.not_static is None
        assert "static" in engine._target.clock.attention


def together(engine: lade.Engine, prompts: list[list[int]], new: int, **kwargs: Any) -> list[Request]:
    """Requests that arrive one after the other, while those before them decode."""
    requests = list[Request]()
    for prompt in prompts:
        requests.append(engine.submit(**greedy(prompt, new, **kwargs), seed=3))
        for _ in range(3):
            engine.step()
    engine.run()
    return requests


SAMPLED: dict[str, Any] = {"do_sample": True, "top_k": 20, "repetition_penalty": 1.2}


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [("llama", {}), ("llama", SAMPLED), ("gemma3", SAMPLED), ("gpt2", SAMPLED), ("mistral-sliding", {})],
    ids=str,
)
def test_texts_of_plain_decoding(name: str, kwargs: dict[str, Any]) -> None:
    """Six requests in four slots: some join others that decode, and take the slots of those that have left."""
    model, prompts = model_of(name), [words(length, seed=length) for length in (9, 40, 4, 25, 61, 13)]
    with opened(model) as engine:
        requests = together(engine, prompts, 15, **kwargs)
    assert [each.tokens for each in requests] == [plain(model, prompt, 15, **kwargs) for prompt in prompts]
    assert sum(sum(each.tally.accepted.values()) for each in requests) > len(requests)


def test_sizes_that_are_chosen_are_those_of_steps() -> None:
    model, prompts = model_of("llama"), [words(9), words(12, seed=1)]
    with opened(model, lade.LookaheadConfig(static=True)) as engine:
        for _ in range(2):
            assert [each.tokens for each in together(engine, prompts, 40)] == [
                plain(model, each, 40) for each in prompts
            ]


def test_the_paper_s_window() -> None:
    model, config = model_of("llama"), lade.LookaheadConfig(mode="lookahead", window=5, ngram=3, guesses=5, static=True)
    with opened(model, config) as engine:
        (request,) = together(engine, [words(9)], 20)
    assert request.tokens == plain(model, words(9), 20)


@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral-sliding"])
def test_a_conversation_computes_new_tokens_alone(name: str) -> None:
    """What static steps computed is kept for the tenant's next prompts, with what sliding layers see at its end."""
    model, text = model_of(name), words(70)
    with opened(model) as engine:
        held = 0
        for turn in range(3):
            request = engine.submit(**greedy(text, 20), tenant="ann")
            engine.run()
            assert request.tokens == plain(model, text, 20)
            assert request.cached == held // CHUNK * CHUNK
            held = len(request.tokens) - 1
            text = request.tokens + words(5, seed=turn)


def test_what_a_sliding_layer_was_not_given_is_not_kept() -> None:
    """The second text begins with what its window needs of the first one; the third one needs what neither stored."""
    model, text = model_of("gemma3"), words(230)
    prompts = [text, [*text[: 3 * CHUNK], *words(2, seed=1)], [*text[: 2 * CHUNK], *words(4, seed=2)]]
    with opened(model) as engine:
        requests = list[Request]()
        for prompt in prompts:
            requests.append(engine.submit(**greedy(prompt, 5), tenant="ann"))
            engine.run()
    assert [each.tokens for each in requests] == [plain(model, prompt, 5) for prompt in prompts]
    assert [each.cached for each in requests] == [0, 3 * CHUNK, 0]


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_own_cache_is_extended_in_place(name: str) -> None:
    model, text = model_of(name), words(40)
    ours, theirs = (DynamicCache(config=model.config) for _ in range(2))
    with opened(model) as engine:
        for turn in range(2):
            request = engine.submit(**greedy(text, 20, past_key_values=ours))
            neighbour = engine.submit(**greedy(words(9), 30))
            engine.run()
            assert request.tokens == plain(model, text, 20, past_key_values=theirs)
            assert neighbour.tokens == plain(model, words(9), 30)
            for own, stock in zip(ours.layers, theirs.layers, strict=True):
                assert own.get_seq_length() == stock.get_seq_length()
                torch.testing.assert_close(own.keys, stock.keys)
                torch.testing.assert_close(own.values, stock.values)
            text = request.tokens + words(4, seed=turn)


def test_a_cancelled_request_leaves_its_slot() -> None:
    model = model_of("llama")
    with opened(model, slots=1) as engine:
        cut = engine.submit(**greedy(words(9), 50))
        waits = engine.submit(**greedy(words(12), 20))
        for _ in range(4):
            engine.step()
        engine.cancel(cut)
        engine.run()
    assert waits.tokens == plain(model, words(12), 20)
    assert cut.tokens == plain(model, words(9), 50)[: len(cut.tokens)]


def test_slots_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """While others decode, and with what they hold; smaller texts that follow find the larger slots."""
    monkeypatch.setattr(shelf, "NODES", (16,))
    monkeypatch.setattr(shelf, "SPARE", 1)
    monkeypatch.setattr("lade.static.buckets.SMALLEST_CAPACITY", 16)
    model, sizes = own_llama().double(), [(9, 100), (40, 100), (5, 20)]
    with opened(model) as engine:
        requests = [engine.submit(**greedy(words(length), new)) for length, new in sizes]
        engine.run()
        capacity = engine._steps.graphs.step.slots.capacity  # type: ignore[union-attr]
        requests.append(engine.submit(**greedy(words(6), 20)))
        engine.run()
        assert capacity == engine._steps.graphs.step.slots.capacity == 256  # type: ignore[union-attr]
    expected = [plain(model, words(length), new) for length, new in [*sizes, (6, 20)]]
    assert [each.tokens for each in requests] == expected


def test_an_idle_engine_holds_no_graphs() -> None:
    """So the model may be changed between its requests, and calls may use them."""
    model = own_llama().double()
    with opened(model) as engine:
        graphs = shelf._kept[model].graphs
        engine.submit(**greedy(words(9), 20))
        engine.step()
        assert shelf._kept[model].graphs is None
        assert lade.generate(model, **greedy(words(9), 20), config=CONFIG)[0].tolist() == plain(model, words(9), 20)
        engine.run()
        assert shelf._kept[model].graphs is graphs
        slots = graphs.step.slots  # type: ignore[union-attr]
        assert not any(stack[:, :, : slots.offsets[-1]].any() for stack in slots.stacks)
        before = plain(model, words(9), 20)
        with torch.no_grad():
            model.lm_head.weight.mul_(-1)
        request = engine.submit(**greedy(words(9), 20))
        engine.run()
        assert request.tokens == plain(model, words(9), 20) != before


def test_a_model_whose_steps_are_static_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    model = own_llama().double()
    with lade.Engine(model, CONFIG, slots=2) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(lasting, "static_target", lambda *args: "a reason")
            requests = together(engine, [words(9), words(70)], 20)
            assert engine.not_static == "a reason"
            assert "static" not in engine._target.clock.attention
        requests += together(engine, [words(9), words(70)], 20)
        assert engine.not_static is None
        assert "static" in engine._target.clock.attention
    assert [each.tokens for each in requests] == 2 * [plain(model, words(9), 20), plain(model, words(70), 20)]


@pytest.mark.parametrize(
    ("reason", "attention", "kwargs"),
    [
        ("kv_bytes bounds the slots", "sdpa", {"kv_bytes": 1 << 24}),
        ("a method drafts with a model", "sdpa", {"method": True}),
        ("33 rows", "sdpa", {"slots": 33}),
        ("attention implementation 'eager'", "eager", {}),
    ],
)
def test_engines_whose_steps_are_not_static(
    reason: str, attention: str, kwargs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chosen, "DEVICE", "cpu")
    model = model_of("llama", attention)
    if "method" in kwargs:
        kwargs = {"method": lade.DraftModel(model)}
    with lade.Engine(model, **{"slots": 2, **kwargs}) as engine:
        assert str(engine.not_static).startswith(reason)
        (request,) = together(engine, [words(9)], 20)
    assert request.tokens == plain(model, words(9), 20)


def test_nobody_asks_on_a_cpu() -> None:
    with lade.Engine(model_of("llama"), slots=2) as engine:
        together(engine, [words(9)], 5)
        assert (engine.not_static, "static" in engine._target.clock.attention) == (None, False)
