"""transformers' own assisted generation and prompt lookup: their text, and what the statistics say about them."""

import copy
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from families import BY_NAME, VOCAB
from hypothesis import given
from hypothesis import strategies as st
from sidebyside import PROMPT, encode, story
from tiny import tiny_model, words
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

import lade
from lade.entry.assisted import StepCounter, stats_of
from lade.measure.forwards import Forwards

# transformers' own candidate generators pass both kinds of settings to `generate`
pytestmark = pytest.mark.filterwarnings("ignore:Passing `generation_config` together with")

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 48}
ENDLESS = GREEDY | {"eos_token_id": 2}  # prompt lookup of transformers 5.6 needs an end token; this one does not come


def tiny(name: str = "llama", dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    return tiny_model(BY_NAME[name], "sdpa", dtype)


def forwards_of(model: PreTrainedModel) -> list[int]:
    """Widths of its forwards from now on, counted apart from lade."""
    seen: list[int] = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    return seen


def stats() -> lade.GenerationStats:
    found = lade.last_stats()
    assert found is not None
    return found


# Text and counts


@pytest.mark.compat
@pytest.mark.parametrize("draft_tokens", [1, 4, None])
def test_assistant_that_is_always_right(draft_tokens: int | None) -> None:
    model, _ = story()
    expected = model.generate(**encode(), **GREEDY)
    copied = copy.deepcopy(model)
    seen = forwards_of(copied)
    ours = lade.assisted_generate(
        copied, **encode(), assistant=copy.deepcopy(model), draft_tokens=draft_tokens, **GREEDY
    )
    assert ours.tolist() == expected.tolist()
    found = stats()
    assert (found.rows, found.new_tokens) == (1, ours.shape[1] - encode()["input_ids"].shape[1])
    assert found.steps == len(seen) - 1
    assert found.forward_tokens == sum(seen[1:]) == sum(width * times for width, times in found.widths.items())
    assert found.accepted == found.verified == {"assistant": found.new_tokens - len(seen)}
    if draft_tokens is not None:
        assert set(seen[1:-1]) == {draft_tokens + 1}
        assert found.steps == -(-found.new_tokens // (draft_tokens + 1)) - 1
    assert found.prefill_seconds > 0
    assert 0 < found.draft_seconds < found.host_seconds


@pytest.mark.parametrize("sampling", [False, True], ids=("greedy", "sampled"))
def test_assistant_that_is_often_wrong(sampling: bool) -> None:
    model, assistant = tiny("llama", torch.float64), copy.deepcopy(tiny("qwen2", torch.float64))
    kwargs = GREEDY | ({"do_sample": True, "temperature": 0.7} if sampling else {})
    torch.manual_seed(0)
    ours = lade.assisted_generate(model, **words(9), assistant=assistant, draft_tokens=3, **kwargs)
    found = stats()
    assert found.new_tokens == ours.shape[1] - 9 == 48
    accepted = found.accepted["assistant"]
    assert accepted == found.new_tokens - found.steps - 1
    assert accepted < found.verified["assistant"] <= found.proposed["assistant"] <= 3 * (found.steps + 1)
    if not sampling:
        assert ours.tolist() == model.generate(**words(9), **kwargs).tolist()


@pytest.mark.compat
def test_prompt_lookup() -> None:
    model, text = tiny("llama", torch.float64), torch.tensor([[5, 6, 7, 8] * 5])
    expected = model.generate(text, **ENDLESS)
    ours = lade.prompt_lookup_generate(model, text, draft_tokens=6, ngram=3, **ENDLESS)
    assert ours.tolist() == expected.tolist()
    found = stats()
    assert found.accepted["prompt_lookup"] == 48 - found.steps - 1
    assert found.proposed["prompt_lookup"] > 0
    assert max(found.widths) <= 7
    assert found.draft_seconds == 0
    assert lade.log_history()[-1] is found


def test_forwards_of_processors_are_no_steps() -> None:
    """Guidance runs the model once more per token, with a cache of its own."""
    model, asked = tiny("llama", torch.float64), ENDLESS | {"guidance_scale": 1.5}
    expected = model.generate(**words(9), prompt_lookup_num_tokens=10, **asked)
    assert lade.prompt_lookup_generate(model, **words(9), **asked).tolist() == expected.tolist()
    assert stats().new_tokens == expected.shape[1] - 9


@pytest.mark.parametrize("name", ["assistant_model", "custom_generate"])
def test_other_methods_are_refused(name: str) -> None:
    model = tiny()
    with pytest.raises(ValueError, match=f"{name} must be None"):
        lade.prompt_lookup_generate(model, **words(9), **{name: model})


def test_caches_that_hold_something_are_refused() -> None:
    """transformers would run the whole prompt once more behind it, without an error."""
    model, text = tiny("llama", torch.float64), words(9)["input_ids"]
    cache = DynamicCache(config=model.config)
    expected = lade.prompt_lookup_generate(model, text, past_key_values=cache, **ENDLESS)
    with pytest.raises(ValueError, match=r"past_key_values must be an empty cache, got one of \d+ tokens"):
        lade.prompt_lookup_generate(model, expected, past_key_values=cache, **ENDLESS)


def test_it_ends_at_an_end_token() -> None:
    model = tiny("llama", torch.float64)
    plain = model.generate(**words(9), **GREEDY)
    end = int(plain[0, 9 + 20])
    expected = model.generate(**words(9), **GREEDY, eos_token_id=end)
    ours = lade.assisted_generate(
        model, **words(9), assistant=copy.deepcopy(model), draft_tokens=7, **GREEDY, eos_token_id=end
    )
    assert ours.tolist() == expected.tolist()
    assert stats().new_tokens == expected.shape[1] - 9
    assert stats().accepted["assistant"] == stats().new_tokens - stats().steps - 1


def test_dictionaries_and_streamers() -> None:
    class Lines:
        def __init__(self) -> None:
            self.seen: list[int] = []
            self.ended = 0

        def put(self, value: Tensor) -> None:
            self.seen += value.flatten().tolist()

        def end(self) -> None:
            self.ended += 1

    lines, model = Lines(), tiny("llama")
    out = lade.prompt_lookup_generate(model, **words(9), streamer=lines, return_dict_in_generate=True, **ENDLESS)
    assert lines.seen == out.sequences[0].tolist()
    assert lines.ended == 1


# Another tokenizer


@pytest.fixture(scope="module")
def other() -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A tiny random model with a tokenizer of its own."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([PROMPT] * 3, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=len(fast), bos_token_id=1, eos_token_id=2)).eval()
    model.generation_config.pad_token_id = 2
    return model, fast


def test_assistant_with_another_tokenizer(other: tuple[PreTrainedModel, PreTrainedTokenizerFast]) -> None:
    model, tokenizer = story()
    expected = model.generate(**encode(), **GREEDY)
    ours = lade.assisted_generate(
        model,
        **encode(),
        assistant=other[0],
        tokenizer=tokenizer,
        assistant_tokenizer=other[1],
        draft_tokens=4,
        **GREEDY,
    )
    assert ours.tolist() == expected.tolist()
    assert stats().proposed["assistant"] > 0
    assert stats().accepted["assistant"] == stats().new_tokens - stats().steps - 1


# What is put back, and what is refused


def fail(*_: object) -> None:
    raise RuntimeError("on purpose")


def test_the_assistant_keeps_its_settings() -> None:
    model, assistant = tiny("llama"), copy.deepcopy(tiny("qwen2"))
    assistant.generation_config.num_assistant_tokens = 9
    before = assistant.generation_config.to_dict()
    lade.assisted_generate(model, **words(9), assistant=assistant, draft_tokens=2, **GREEDY)
    assert assistant.generation_config.to_dict() == before
    handle = model.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        lade.assisted_generate(model, **words(9), assistant=assistant, draft_tokens=2, **GREEDY)
    handle.remove()
    assert assistant.generation_config.to_dict() == before
    for each in (model, assistant):
        assert not each._forward_pre_hooks
        assert not each._forward_hooks


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"assistant": None}, "assistant must be a transformers model that can generate, got None"),
        ({"assistant": tiny("llama")}, "assistant must be another model .*, got LlamaForCausalLM"),
        ({"draft_tokens": 0}, "draft_tokens must be an integer of at least 1, got 0"),
        ({"draft_tokens": 2.0}, "draft_tokens must be an integer of at least 1, got 2.0"),
        ({"tokenizer": "x"}, "tokenizer must be a transformers tokenizer or None, got 'x'"),
        (
            {"tokenizer": Mock()},
            "tokenizer and assistant_tokenizer must be given together, got no assistant_tokenizer",
        ),
        (
            {"assistant_tokenizer": Mock()},
            "tokenizer and assistant_tokenizer must be given together, got no tokenizer",
        ),
        ({"input_ids": torch.ones(2, 3, dtype=torch.long)}, "input_ids must have one row, .*, got 2"),
        ({"input_ids": None}, r"input_ids must be a tensor of shape \[rows, tokens\], got NoneType"),
        ({"num_beams": 2}, "num_beams must be 1 .*, got 2"),
    ],
)
def test_refused_before_any_work(arguments: dict[str, Any], match: str) -> None:
    model, calls = tiny("llama"), len(lade.log_history())
    given_arguments = {"input_ids": words(9)["input_ids"], "assistant": tiny("qwen2")} | arguments
    with pytest.raises(ValueError, match=match):
        lade.assisted_generate(model, **given_arguments)
    assert len(lade.log_history()) == calls


def test_other_vocabulary_names_both_sizes(other: tuple[PreTrainedModel, PreTrainedTokenizerFast]) -> None:
    with pytest.raises(ValueError, match=f"vocabulary of {VOCAB} tokens .*, got {other[1].vocab_size}"):
        lade.assisted_generate(tiny("llama"), **words(9), assistant=other[0])


@pytest.mark.parametrize(("name", "value"), [("draft_tokens", 0), ("ngram", 0), ("ngram", True)])
def test_prompt_lookup_checks_its_numbers(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1, got {value}"):
        lade.prompt_lookup_generate(tiny("llama"), **words(9), **{name: value})


# The parts


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=8))
def test_statistics_of_chains(steps: list[tuple[int, int]]) -> None:
    """Per forward: drafted, and how many of these were right; then one token of the model's own."""
    drafted = [tokens for tokens, _ in steps]
    right = [min(each) for each in steps]
    seen = Forwards(tuple(tokens + 1 for tokens in drafted), 1.0, 0.1, 0.2, 0.3)
    found = stats_of("x", seen, drafted, [tokens + 1 for tokens in right])
    compared = sum(min(tokens, correct + 1) for tokens, correct in zip(drafted, right, strict=True))
    assert found.proposed["x"] >= found.verified["x"] == compared >= found.accepted["x"] == sum(right)
    assert found.new_tokens == sum(right) + len(steps)
    assert found.host_seconds == pytest.approx(0.7)


def test_step_counter_skips_the_prompt() -> None:
    counter = StepCounter(None)
    for value in (torch.ones(1, 5), torch.ones(1, 3), torch.ones(1, 1)):
        counter.put(value)
    counter.end()
    assert counter.emitted == [3, 1]


def test_guidance_with_an_assistant_is_refused() -> None:
    model = tiny()
    for assisted in ({"guidance_scale": 1.5}, {"guidance_scale": 0}):
        with pytest.raises(ValueError, match="guidance_scale must be None or 1 with an assistant, got"):
            lade.assisted_generate(model, **words(9), assistant=tiny("qwen2"), **assisted)
