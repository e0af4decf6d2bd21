"""Caches that come in and go out, and prompts that come with positions of their own."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from operator import is_
from typing import Any

import pytest
import torch
from families import BY_NAME, WINDOW
from sidebyside import CONFIG, NEW_TOKENS, PROMPT, PROMPTS, assert_looked_ahead, assert_same, both, encode, story
from tiny import tiny_model, words
from torch import Tensor
from transformers import DynamicCache, MllamaForCausalLM, StaticCache
from transformers.cache_utils import StaticLayer
from transformers.models.mllama.configuration_mllama import MllamaTextConfig

import lade


def ones(text: Tensor) -> Tensor:
    """Nothing is padding, whatever a random model writes."""
    return torch.ones_like(text)


CACHED = ("llama", "mistral-sliding", "gemma3", "gemma4", "gpt2", "llama4", "deepseek_v3")


@cache
def at_once(name: str, lengths: tuple[int, ...]) -> Tensor:
    """36 new tokens of plain decoding; a shorter text is a beginning of it."""
    text = words(*lengths)["input_ids"]
    return tiny_model(BY_NAME[name]).generate(text, attention_mask=ones(text), do_sample=False, max_new_tokens=36)


@pytest.mark.compat
@pytest.mark.parametrize(("name", "lengths"), [*((name, (9, 9)) for name in CACHED), ("llama", (9,))])
def test_returned_cache_can_be_continued_from(name: str, lengths: tuple[int, ...]) -> None:
    model, text = tiny_model(BY_NAME[name]), words(*lengths)["input_ids"]
    first = lade.generate(
        model,
        input_ids=text,
        attention_mask=ones(text),
        config=CONFIG,
        do_sample=False,
        max_new_tokens=18,
        return_dict_in_generate=True,
    )
    assert_looked_ahead()
    cache = first.past_key_values
    assert type(cache) is DynamicCache
    assert [type(layer) for layer in cache.layers] == [
        type(layer) for layer in DynamicCache(config=model.config).layers
    ]
    assert cache.get_seq_length() == first.sequences.shape[1] - 1
    text = first.sequences
    second = model.generate(text, attention_mask=ones(text), past_key_values=cache, do_sample=False, max_new_tokens=18)
    assert second.tolist() == at_once(name, lengths).tolist()


@pytest.mark.parametrize(
    ("name", "lengths", "begun"),
    [*((name, (9, 9), True) for name in CACHED), *((name, (9,), False) for name in ("llama", "gemma3", "gpt2"))],
)
def test_own_cache_is_extended_in_place(name: str, lengths: tuple[int, ...], begun: bool) -> None:
    model, text = tiny_model(BY_NAME[name]), words(*lengths)["input_ids"]
    kept = DynamicCache(config=model.config)
    if begun:
        text = model.generate(text, attention_mask=ones(text), past_key_values=kept, do_sample=False, max_new_tokens=12)
    turn = lade.generate(
        model,
        input_ids=text,
        attention_mask=ones(text),
        past_key_values=kept,
        config=CONFIG,
        do_sample=False,
        max_new_tokens=30 + 9 - text.shape[1],
        return_dict_in_generate=True,
    )
    assert_looked_ahead()
    assert turn.past_key_values is kept
    assert kept.get_seq_length() == turn.sequences.shape[1] - 1
    assert [type(layer) for layer in kept.layers] == [type(layer) for layer in DynamicCache(config=model.config).layers]
    text = turn.sequences
    last = model.generate(text, attention_mask=ones(text), past_key_values=kept, do_sample=False, max_new_tokens=6)
    assert last.tolist() == at_once(name, lengths)[:, : last.shape[1]].tolist()


STATIC = [
    *(pytest.param(name, marks=pytest.mark.compat) for name in ("llama", "gemma4", "gpt2", "mistral-sliding")),
    *("deepseek_v3", "llama4"),  # transformers 5.17 gives llama4's mask an argument that it does not take
]
FIT = {"mistral-sliding": (WINDOW - 3, 4), "gemma4": (WINDOW - 3, 4), "llama4": (WINDOW - 3, 4)}  # up to a whole window


def assert_alike(ours: StaticCache, theirs: StaticCache) -> None:
    """Entries of plain decoding, nothing behind them, and its lengths."""
    assert type(ours) is StaticCache
    for one, other in zip(ours.layers, theirs.layers, strict=True):
        assert type(one) is type(other)
        if isinstance(other, StaticLayer):
            assert one.cumulative_length.tolist() == other.cumulative_length.tolist()
            assert getattr(one, "cumulative_length_int", 0) == getattr(other, "cumulative_length_int", 0)
            assert one.get_mask_sizes(1) == other.get_mask_sizes(1)
            torch.testing.assert_close(one.keys, other.keys)
            torch.testing.assert_close(one.values, other.values)


@pytest.mark.parametrize("name", STATIC)
@pytest.mark.parametrize("rows", [1, 2], ids=("alone", "padded"))
def test_own_static_cache_is_extended_in_place(name: str, rows: int) -> None:
    """In two turns; the second one goes on from the first one's entries."""
    model = tiny_model(BY_NAME[name], "sdpa", torch.float64)
    width, new = FIT.get(name, (9, 18))
    inputs = words(width, width - 2) if rows == 2 else words(width)
    ours, theirs = (StaticCache(model.config, max_cache_len=width + new + 6) for _ in range(2))
    texts = []
    for own, generate in ((theirs, model.generate), (ours, partial(lade.generate, model, config=CONFIG))):
        text, mask, buffers = inputs["input_ids"], inputs["attention_mask"], None
        for turn in (new - 2, 2):
            arguments = {"attention_mask": mask, "past_key_values": own, "do_sample": False, "max_new_tokens": turn}
            text = generate(input_ids=text, **arguments)
            mask = torch.cat([mask, mask.new_ones(rows, turn)], dim=1)
            before, buffers = buffers, [layer.keys for layer in own.layers]
            assert before is None or all(map(is_, before, buffers))
        texts.append(text.tolist())
    assert lade.last_stats().fallback is None
    assert texts[0] == texts[1]
    assert_alike(ours, theirs)


@pytest.mark.parametrize(("texts", "chunk"), [((PROMPT,), None), (PROMPTS, 4)], ids=("alone", "padded-chunks"))
def test_static_cache_by_name(texts: tuple[str, ...], chunk: int | None) -> None:
    """The cache of the result is the one that plain decoding fills, also where it exists before the prompt is read."""
    asked = {"cache_implementation": "static", "return_dict_in_generate": True, "prefill_chunk_size": chunk}
    theirs, ours = both(story()[0], lambda: encode(*texts), **asked)
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    assert_looked_ahead()
    assert_alike(ours.past_key_values, theirs.past_key_values)


def test_cache_without_layers() -> None:
    cache = DynamicCache()
    theirs, ours = both(story()[0], lambda: encode() | {"past_key_values": DynamicCache()})
    assert ours.tolist() == theirs.tolist()
    assert_looked_ahead()
    lade.generate(story()[0], **encode(), past_key_values=cache, do_sample=False, max_new_tokens=NEW_TOKENS)
    assert cache.get_seq_length() == ours.shape[1] - 1


def test_a_model_that_looks_into_the_layers_of_its_cache() -> None:
    """Mllama asks them for their keys, in the turn that continues a cache too."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = MllamaTextConfig(
        vocab_size=80, **sizes, num_key_value_heads=2, cross_attention_layers=[], bos_token_id=1, eos_token_id=2,
        pad_token_id=0,
    )  # fmt: skip
    model, caches, turns = MllamaForCausalLM(config).eval(), [DynamicCache(), DynamicCache()], []
    for generate, own in zip((model.generate, partial(lade.generate, model, config=CONFIG)), caches, strict=True):
        text = words(5)["input_ids"]
        for _ in range(2):
            text = generate(
                input_ids=text, attention_mask=ones(text), past_key_values=own, do_sample=False, max_new_tokens=6
            )
        turns.append(text.tolist())
    assert turns[0] == turns[1]
    assert lade.last_stats().fallback is None


def test_a_cache_of_fewer_rows_is_refused_as_by_plain_decoding() -> None:
    model, text = tiny_model(BY_NAME["llama"]), words(9)["input_ids"]
    for generate in (model.generate, partial(lade.generate, model)):
        cache = DynamicCache(config=model.config)
        model(input_ids=text[:, :4], past_key_values=cache)
        with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
            generate(
                input_ids=text.repeat(2, 1), attention_mask=ones(text.repeat(2, 1)), past_key_values=cache,
                do_sample=False, max_new_tokens=3,
            )  # fmt: skip


@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize("texts", [(PROMPT,), PROMPTS], ids=("alone", "padded"))
def test_prefill_in_chunks(size: int, texts: tuple[str, ...]) -> None:
    assert_same(texts, prefill_chunk_size=size)


def tiny_both(name: str, inputs: Callable[[], dict[str, Any]], **kwargs: Any) -> None:
    theirs, ours = both(tiny_model(BY_NAME[name], "sdpa"), inputs, **kwargs)
    assert ours.tolist() == theirs.tolist()
    assert_looked_ahead()


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral-sliding"])
@pytest.mark.parametrize("positions", [range(5, 14), (0, 0, 1, 2, 3, 3, 4, 5, 6)], ids=("later", "repeated"))
def test_own_positions(positions: Sequence[int], name: str) -> None:
    rows = torch.tensor([list(positions), list(range(9))])
    tiny_both(name, lambda: words(9, 9) | {"position_ids": rows})
    tiny_both(name, lambda: words(9) | {"position_ids": rows[:1]})


@pytest.mark.parametrize("name", CACHED)
def test_only_the_new_tokens_beside_a_cache(name: str) -> None:
    model = tiny_model(BY_NAME[name], "sdpa")

    def inputs() -> dict[str, Any]:
        cache = DynamicCache(config=model.config)
        said = model.generate(**words(9), past_key_values=cache, do_sample=False, max_new_tokens=12)
        text = torch.cat([said, words(4, seed=1)["input_ids"]], dim=1)
        unseen = text[:, cache.get_seq_length() :]
        return {"input_ids": unseen, "attention_mask": ones(text), "past_key_values": cache}

    tiny_both(name, inputs)


def test_no_inputs() -> None:
    model = tiny_model(BY_NAME["llama"])
    with lade.lookahead(model, CONFIG):
        ours = model.generate(do_sample=False, max_new_tokens=NEW_TOKENS)
    assert_looked_ahead()
    assert ours.tolist() == model.generate(do_sample=False, max_new_tokens=NEW_TOKENS).tolist()


@pytest.mark.parametrize("name", CACHED)
def test_a_bare_cache_gets_the_layers_that_plain_decoding_gives_it(name: str) -> None:
    """gemma4's last layers share the keys of others and have none of their own."""
    model, text = tiny_model(BY_NAME[name]), words(9)["input_ids"]
    plainly, ahead = DynamicCache(), DynamicCache()
    model.generate(text, past_key_values=plainly, do_sample=False, max_new_tokens=36)
    lade.generate(model, input_ids=text, past_key_values=ahead, config=CONFIG, do_sample=False, max_new_tokens=36)
    assert_looked_ahead()
    assert [type(layer) for layer in ahead.layers] == [type(layer) for layer in plainly.layers]
    for one, other in zip(ahead.layers, plainly.layers, strict=True):
        torch.testing.assert_close(one.keys, other.keys)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_sequences_have_the_type_of_plain_decoding_s(dtype: torch.dtype) -> None:
    model, text = tiny_model(BY_NAME["llama"]), words(9)["input_ids"].to(dtype)
    plainly = model.generate(text, do_sample=False, max_new_tokens=12)
    ahead = lade.generate(model, input_ids=text, config=CONFIG, do_sample=False, max_new_tokens=12)
    assert_looked_ahead()
    assert (ahead.dtype, ahead.tolist()) == (plainly.dtype, plainly.tolist())
