"""Calls of `generate` on static steps: the text of plain decoding, and where steps are not static, why."""

import copy
import gc
import logging
import weakref
from typing import Any

import pytest
import torch
from families import BY_NAME
from tiny import own_llama, tiny_model, words
from transformers import DynamicCache, PreTrainedModel, StaticCache

import lade
from lade.static import chosen, shelf, sight
from lade.static.condensed import condensed

STATIC = lade.LookaheadConfig(static=True, adapt=False, budget=12)
NEW = 18
SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 0.8, "top_k": 20}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": SAMPLED,
    "sampled, reading the text": {**SAMPLED, "repetition_penalty": 1.2},
    "with scores": {"do_sample": False, "return_dict_in_generate": True, "output_scores": True},
}


def model_of(name: str, attention: str = "sdpa") -> PreTrainedModel:
    return tiny_model(BY_NAME[name], attention, torch.float64)


def both(model: PreTrainedModel, config: lade.LookaheadConfig = STATIC, **kwargs: Any) -> tuple[Any, Any]:
    """What lade returns, and plain decoding."""
    kwargs = {"max_new_tokens": NEW, **kwargs}
    torch.manual_seed(3)
    plain = model.generate(**copy.deepcopy(kwargs))
    torch.manual_seed(3)
    return lade.generate(model, config=config, **kwargs), plain


def assert_static(**kwargs: Any) -> None:
    ours, plain = both(**kwargs)
    stats = lade.last_stats()
    assert torch.equal(getattr(ours, "sequences", ours), getattr(plain, "sequences", plain))
    assert (stats.not_static, set(stats.attention)) == (None, {"static"})
    assert stats.steps < stats.new_tokens


FOUR = (9, 21, 4, 13)
CASES = [("llama", (9,)), ("llama", FOUR), ("gemma3", FOUR), ("gpt2", (9,))]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "lengths"), CASES, ids=str)
def test_texts_of_plain_decoding(name: str, lengths: tuple[int, ...], way: str) -> None:
    if way == "with scores":
        lengths = (9,) * len(lengths)  # the caller gets the cache, whose padding slots do not hold
    assert_static(model=model_of(name), **words(*lengths), **WAYS[way])


@pytest.mark.parametrize("name", ["qwen3", "phi", "cohere2", "mistral-sliding"])
def test_further_families(name: str) -> None:
    assert_static(model=model_of(name), **words(9, 4), do_sample=False)


def test_the_paper_s_window() -> None:
    config = lade.LookaheadConfig(mode="lookahead", window=5, ngram=3, guesses=5, static=True)
    assert_static(model=model_of("llama"), config=config, **words(9, 5), do_sample=False)


def test_sizes_that_are_chosen_are_those_of_steps() -> None:
    config = lade.LookaheadConfig(static=True)
    for _ in range(2):
        assert_static(model=model_of("llama"), config=config, **words(9), do_sample=False, max_new_tokens=60)


def test_stop_rules() -> None:
    model = model_of("llama")
    text = model.generate(**words(9, 4), do_sample=False, max_new_tokens=NEW)
    ends = [int(text[0, -4]), int(text[1, -9])]
    assert_static(model=model, **words(9, 4), do_sample=False, eos_token_id=ends, pad_token_id=0)


class Streamer:
    def __init__(self) -> None:
        self.got: list[list[int]] = []

    def put(self, value: torch.Tensor) -> None:
        self.got.append(value.flatten().tolist())

    def end(self) -> None:
        self.got.append([])


def test_streamer() -> None:
    model, ours, plain = model_of("llama"), Streamer(), Streamer()
    kwargs = {**words(9), "do_sample": False, "max_new_tokens": NEW}
    model.generate(**kwargs, streamer=plain)
    lade.generate(model, **kwargs, streamer=ours, config=STATIC)
    assert lade.last_stats().attention.keys() == {"static"}
    assert ours.got == plain.got


@pytest.mark.parametrize("kind", [DynamicCache, StaticCache])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_own_cache_is_extended_in_place(name: str, kind: Any) -> None:
    model, prompt = model_of(name), words(9)
    room = {"max_cache_len": 64} if kind is StaticCache else {}
    ours, plain = (kind(config=model.config, **room) for _ in range(2))
    if name == "gemma3" and kind is StaticCache:
        return  # its window may roll: decoded plainly
    text = model.generate(**prompt, do_sample=False, max_new_tokens=NEW, past_key_values=plain)
    found = lade.generate(model, **prompt, do_sample=False, max_new_tokens=NEW, past_key_values=ours, config=STATIC)
    assert lade.last_stats().attention.keys() == {"static"}
    assert torch.equal(found, text)
    assert ours.get_seq_length() == plain.get_seq_length() == text.shape[1] - 1
    for one, other in zip(ours.layers, plain.layers, strict=True):
        torch.testing.assert_close(one.keys, other.keys)
        torch.testing.assert_close(one.values, other.values)


def test_slots_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "NODES", (16,))
    monkeypatch.setattr(shelf, "SPARE", 1)
    monkeypatch.setattr("lade.static.buckets.SMALLEST_CAPACITY", 16)
    capacities = []
    monkeypatch.setattr(shelf.Graphs, "larger", _noted(shelf.Graphs.larger, capacities))
    assert_static(model=own_llama().double(), **words(9, 5), do_sample=False, max_new_tokens=100)
    assert len(capacities) == 2


def _noted(function: Any, calls: list[int]) -> Any:
    def noting(self: Any, tokens: int) -> Any:
        calls.append(tokens)
        return function(self, tokens)

    return noting


def test_graphs_outlive_a_call_and_not_the_model() -> None:
    model = own_llama().double()
    assert_static(model=model, **words(9), do_sample=False)
    graphs = shelf._kept[model].graphs
    assert_static(model=model, **words(12), do_sample=False)
    assert shelf._kept[model].graphs is graphs
    slots = graphs.step.slots
    assert not any(stack[:, :, : slots.offsets[-1]].any() for stack in slots.stacks)
    with torch.no_grad():
        model.lm_head.weight.mul_(-1)
    assert_static(model=model, **words(9), do_sample=False)
    assert shelf._kept[model].graphs is not graphs
    left = weakref.ref(model)
    del model
    gc.collect()
    assert left() is None


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")  # padding nodes hold anything
@pytest.mark.usefixtures("interpreter")
def test_the_kernels_decode_with_one_twin_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe has compared logits with the model's; two calls, of which the second has the graphs of the first."""
    made = list[bool]()
    monkeypatch.setattr("lade.static.step.condensed", lambda model, own: made.append(own) or condensed(model, own))
    model = own_llama().bfloat16()
    for calls in (1, 2):
        lade.generate(model, **words(9), do_sample=False, max_new_tokens=4, config=STATIC)
        assert (lade.last_stats().not_static, set(lade.last_stats().attention)) == (None, {"static"})
        assert made == [True] * calls
    left = weakref.ref(model)
    del model
    gc.collect()
    assert left() is None, "a twin holds it"


def test_a_step_that_computes_something_else(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    right = sight.masks
    monkeypatch.setattr("lade.static.step.masks", lambda *args: {k: 0 * v for k, v in right(*args).items()})
    model = own_llama().double()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            ours, plain = both(model, **words(9), do_sample=False)
            assert torch.equal(ours, plain)
            assert "the self-probe found logits of a tree off by" in lade.last_stats().not_static
            assert "static" not in lade.last_stats().attention
    assert len([each for each in caplog.messages if each.startswith("lade: steps of this model are not static")]) == 1


@pytest.mark.parametrize(
    ("reason", "name", "attention", "lengths", "kwargs"),
    [
        ("attention implementation 'eager'", "llama", "eager", (9, 9), {}),
        ("the caller gets the cache of padded prompts", "llama", "sdpa", (9, 4), {"return_dict_in_generate": True}),
        ("the model follows the index of tokens in its cache", "llama4", "sdpa", (9,), {}),
        ("a method drafts with a model", "llama", "sdpa", (9,), {"method": True}),
        ("drafts of 300 tokens in a step", "llama", "sdpa", (9,), {"config": {"budget": 300}}),
        ("33 rows", "llama", "sdpa", (4,) * 33, {"max_new_tokens": 2}),
    ],
)
def test_calls_whose_steps_are_not_static(
    reason: str,
    name: str,
    attention: str,
    lengths: tuple[int, ...],
    kwargs: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, kwargs = model_of(name, attention), {**kwargs, **words(*lengths), "do_sample": False}
    config = lade.LookaheadConfig(static=True, adapt=False, **kwargs.pop("config", {"budget": 12}))
    if kwargs.pop("method", False):
        monkeypatch.setattr(chosen, "DEVICE", "cpu")
        kwargs["method"], config = lade.DraftModel(model), None
    found = lade.generate(model, config=config, **{"max_new_tokens": NEW, **kwargs})
    assert getattr(found, "sequences", found).shape[0] == len(lengths)
    assert lade.last_stats().not_static.startswith(reason)
    assert "static" not in lade.last_stats().attention


def test_nobody_asks_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("llama")
    lade.generate(model, **words(9), do_sample=False, max_new_tokens=4)
    assert (lade.last_stats().not_static, "static" in lade.last_stats().attention) == (None, False)
    monkeypatch.setattr(chosen, "DEVICE", "cpu")
    lade.generate(model, **words(9), do_sample=False, max_new_tokens=4)
    assert "static" in lade.last_stats().attention
    lade.generate(model, **words(9), do_sample=False, max_new_tokens=4, config=lade.LookaheadConfig(static=False))
    assert (lade.last_stats().not_static, "static" in lade.last_stats().attention) == (None, False)
