"""transformers' own surface, on the trained model that ships: everything `generate` takes does what it always did."""

import copy
import threading
from collections.abc import Callable
from typing import Any

import peft
import pytest
import torch
from families import BRANCHABLE
from tiny import tiny_model, words
from torch import Tensor
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
    SynthIDTextWatermarkingConfig,
    TextIteratorStreamer,
    TextStreamer,
    WatermarkingConfig,
    pipeline,
)
from transformers.generation.streamers import BaseStreamer

import lade
import lade.models

CONFIG = lade.LookaheadConfig(ngram=5, window=7, guesses=7, pool_from_prompt=True)
PROMPT = "Once upon a time, there was a little girl named Lily. She"
PROMPTS = [PROMPT, "Tom had a dog", "One day, a bird saw a big"]
NEW_TOKENS = 64
FULL_STOP, COMMA, SHE = ".", ",", "She"
BY_NAME = {family.name: family for family in BRANCHABLE}
Story = tuple[PreTrainedModel, PreTrainedTokenizerBase]


@pytest.fixture(scope="module")
def story() -> Story:
    model, tokenizer = lade.models.load()
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.unk_token
    return model, tokenizer


def encode(story: Story, *texts: str) -> dict[str, Tensor]:
    batch = story[1](list(texts or [PROMPT]), return_tensors="pt", padding=True)
    return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}


def token(story: Story, text: str) -> int:
    return story[1].encode(text, add_special_tokens=False)[-1]


def both(model: PreTrainedModel, inputs: Callable[[], dict[str, Any]], **kwargs: Any) -> tuple[Any, Any]:
    """The same call plainly and with lade, each with inputs of its own and the same seed."""
    kwargs = {"max_new_tokens": NEW_TOKENS, "do_sample": False} | kwargs
    torch.manual_seed(3)
    theirs = model.generate(**inputs(), **kwargs)
    torch.manual_seed(3)
    return theirs, lade.generate(model, **inputs(), config=CONFIG, **kwargs)


def assert_looked_ahead() -> None:
    stats = lade.last_stats()
    assert stats is not None
    assert stats.fallback is None
    assert stats.accepted_tokens > 0


def assert_same(story: Story, texts: tuple[str, ...] = (), **kwargs: Any) -> Tensor:
    theirs, ours = both(story[0], lambda: encode(story, *texts), **kwargs)
    assert ours.tolist() == theirs.tolist()
    assert_looked_ahead()
    return ours


# Logits processors and warpers

PROCESSORS: dict[str, Callable[[Story], dict[str, Any]]] = {
    "repetition_penalty": lambda story: {"repetition_penalty": 1.1},
    "encoder_repetition_penalty": lambda story: {"encoder_repetition_penalty": 1.2},
    "no_repeat_ngram_size": lambda story: {"no_repeat_ngram_size": 4},
    "min_new_tokens": lambda story: {"min_new_tokens": 40, "eos_token_id": token(story, FULL_STOP)},
    "min_length": lambda story: {"min_length": 60, "eos_token_id": token(story, FULL_STOP)},
    "bad_words": lambda story: {
        "bad_words_ids": [[token(story, COMMA)], story[1].encode("was", add_special_tokens=False)]
    },
    "sequence_bias": lambda story: {"sequence_bias": [[[token(story, COMMA)], -5.0]]},
    "suppress_tokens": lambda story: {"suppress_tokens": [token(story, COMMA), token(story, SHE)]},
    "begin_suppress_tokens": lambda story: {"begin_suppress_tokens": list(range(100)) + list(range(200, 512))},
    "forced_eos": lambda story: {"forced_eos_token_id": token(story, FULL_STOP)},
    "exponential_decay": lambda story: {
        "exponential_decay_length_penalty": (40, 1.05),
        "eos_token_id": token(story, SHE),
    },
    "remove_invalid_values": lambda story: {"remove_invalid_values": True},
    "renormalize": lambda story: {"renormalize_logits": True, "repetition_penalty": 1.1},
    "prefix_allowed_tokens": lambda story: {
        "prefix_allowed_tokens_fn": lambda row, text: list(range(3 + len(text) % 2, 512))
    },
    "guidance": lambda story: {"guidance_scale": 1.3},
    "watermark": lambda story: {"watermarking_config": WatermarkingConfig(bias=1.0)},
    "many": lambda story: {
        "repetition_penalty": 1.1,
        "no_repeat_ngram_size": 5,
        "suppress_tokens": [token(story, COMMA)],
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
# These look at nothing but their own row.
IN_BATCHES = sorted(
    PROCESSORS.keys() - {"encoder_repetition_penalty", "prefix_allowed_tokens", "guidance", "watermark"}
)


@pytest.mark.parametrize("name", PROCESSORS)
def test_processors(name: str, story: Story) -> None:
    assert_same(story, **PROCESSORS[name](story))


@pytest.mark.parametrize("name", WARPERS)
def test_warpers(name: str, story: Story) -> None:
    assert_same(story, do_sample=True, **WARPERS[name])


@pytest.mark.parametrize("name", IN_BATCHES)
def test_processors_in_batches(name: str, story: Story) -> None:
    assert_same(story, tuple(PROMPTS), **PROCESSORS[name](story))


@pytest.mark.parametrize("name", sorted(PROCESSORS.keys() - set(IN_BATCHES)))
def test_processors_that_know_the_batch_fall_back(name: str, story: Story) -> None:
    with pytest.warns(lade.FallbackWarning, match="LogitsProcessor"):
        theirs, ours = both(story[0], lambda: encode(story, *PROMPTS), **PROCESSORS[name](story))
    assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("name", sorted(WARPERS.keys() - {"synthid"}))
def test_warpers_in_batches(name: str, story: Story) -> None:
    assert_same(story, tuple(PROMPTS), do_sample=True, **WARPERS[name])


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
def test_user_classes_see_one_token_at_a_time(sample: bool, story: Story) -> None:
    model, inputs = story[0], encode(story)
    kwargs = {"max_new_tokens": 200, "do_sample": sample, "temperature": 0.5 if sample else None}
    seen = []
    for generate in (model.generate, lambda **kw: lade.generate(model, config=CONFIG, **kw)):
        diary, sentences = Diary(), Sentences(token(story, FULL_STOP), 6)
        torch.manual_seed(0)
        out = generate(
            **inputs,
            **kwargs,
            logits_processor=LogitsProcessorList([diary]),
            stopping_criteria=StoppingCriteriaList([sentences]),
        )
        seen.append((out.tolist(), diary.texts, sentences.texts))
    assert seen[1] == seen[0]
    assert out.shape[1] < inputs["input_ids"].shape[1] + 200
    assert_looked_ahead()


@pytest.mark.parametrize("user", ["logits_processor", "stopping_criteria"])
def test_user_classes_in_batches_fall_back(user: str, story: Story) -> None:
    model, inputs = story[0], encode(story, *PROMPTS)
    make = {
        "logits_processor": lambda: LogitsProcessorList([Diary()]),
        "stopping_criteria": lambda: StoppingCriteriaList([Sentences(token(story, FULL_STOP), 2)]),
    }[user]
    theirs = model.generate(**inputs, do_sample=False, max_new_tokens=NEW_TOKENS, **{user: make()})
    with pytest.warns(lade.FallbackWarning, match="Diary|Sentences"):
        ours = lade.generate(model, **inputs, do_sample=False, max_new_tokens=NEW_TOKENS, **{user: make()})
    assert ours.tolist() == theirs.tolist()


# Stop rules


@pytest.mark.parametrize("texts", [(PROMPT,), tuple(PROMPTS)], ids=("alone", "padded"))
def test_stop_strings(texts: tuple[str, ...], story: Story) -> None:
    model, tokenizer = story
    whole = model.generate(**encode(story, *texts), do_sample=False, max_new_tokens=NEW_TOKENS)
    written = tokenizer.decode(whole[0, encode(story, *texts)["input_ids"].shape[1] :])
    stop = written[len(written) // 2 :][:3]
    kwargs = {"stop_strings": [stop, "zebra"], "tokenizer": tokenizer}
    ours = assert_same(story, texts, **kwargs)
    assert stop in tokenizer.decode(ours[0])
    assert len(texts) > 1 or ours.shape[1] < whole.shape[1]


@pytest.mark.parametrize("position", [0, 1, 17, 40])
def test_several_end_tokens(position: int, story: Story) -> None:
    model, inputs = story[0], encode(story)
    start = inputs["input_ids"].shape[1]
    whole = model.generate(**inputs, do_sample=False, max_new_tokens=NEW_TOKENS)[0, start:].tolist()
    theirs, ours = both(model, lambda: inputs, eos_token_id=[511, whole[position], 1])
    assert ours.tolist() == theirs.tolist()
    assert ours.shape[1] == start + whole.index(whole[position]) + 1
    assert lade.last_stats().fallback is None


@pytest.mark.parametrize("new_tokens", [1, 2, 3])
def test_few_tokens(new_tokens: int, story: Story) -> None:
    theirs, ours = both(story[0], lambda: encode(story), max_new_tokens=new_tokens)
    assert ours.tolist() == theirs.tolist()
    assert lade.last_stats().fallback is None


def test_max_time(story: Story) -> None:
    assert_same(story, max_time=3600.0)


def test_max_time_that_is_up(story: Story) -> None:
    theirs, ours = both(story[0], lambda: encode(story), max_time=1e-9)
    assert ours.tolist() == theirs.tolist()


def test_generation_config_object(story: Story) -> None:
    settings = GenerationConfig(max_length=50, repetition_penalty=1.1, do_sample=False, eos_token_id=1, pad_token_id=0)
    assert_same(story, max_new_tokens=None, do_sample=None, generation_config=settings)


# Streamers


class Recorder(BaseStreamer):
    """Remembers every call."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def put(self, value: Tensor) -> None:
        self.calls.append((tuple(value.shape), value.tolist(), str(value.device)))

    def end(self) -> None:
        self.calls.append("end")


@pytest.mark.parametrize("texts", [(PROMPT,), tuple(PROMPTS)], ids=("alone", "padded"))
@pytest.mark.parametrize("sample", [False, True])
def test_streamer_gets_the_same_calls(sample: bool, texts: tuple[str, ...], story: Story) -> None:
    model, recorders = story[0], [Recorder(), Recorder()]
    turns = iter(recorders)
    both(
        model,
        lambda: encode(story, *texts) | {"streamer": next(turns)},
        do_sample=sample,
        eos_token_id=token(story, SHE),
    )
    assert recorders[1].calls == recorders[0].calls
    assert recorders[1].calls[-1] == "end"
    assert_looked_ahead()


def test_text_streamer(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for generate in (story[0].generate, lambda **kwargs: lade.generate(story[0], config=CONFIG, **kwargs)):
        generate(
            **encode(story),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            streamer=TextStreamer(story[1], skip_prompt=True),
        )
        printed.append(capsys.readouterr().out)
    assert printed[1] == printed[0]
    assert printed[0].strip()


def test_text_iterator_streamer(story: Story) -> None:
    model, tokenizer = story
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60)
    kwargs = encode(story) | {"do_sample": False, "max_new_tokens": NEW_TOKENS}
    thread = threading.Thread(
        target=lade.generate, args=(model,), kwargs=kwargs | {"config": CONFIG, "streamer": streamer}
    )
    thread.start()
    pieces = list(streamer)
    thread.join()
    expected = model.generate(**kwargs)[0, kwargs["input_ids"].shape[1] :]
    assert "".join(pieces) == tokenizer.decode(expected)
    assert len(pieces) > 3


# Results


@pytest.mark.parametrize("texts", [(PROMPT,), tuple(PROMPTS)], ids=("alone", "padded"))
@pytest.mark.parametrize("asked", [("output_scores",), ("output_logits",), ("output_scores", "output_logits"), ()])
def test_scores_and_logits(asked: tuple[str, ...], texts: tuple[str, ...], story: Story) -> None:
    kwargs = dict.fromkeys(asked, True) | {"return_dict_in_generate": True, "repetition_penalty": 1.1}
    theirs, ours = both(story[0], lambda: encode(story, *texts), eos_token_id=511, **kwargs)
    assert type(ours) is type(theirs)
    assert ours.keys() == theirs.keys()
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    for name in ("scores", "logits"):
        expected, found = getattr(theirs, name), getattr(ours, name)
        assert (found is None) == (expected is None)
        if expected is not None:
            assert len(found) == len(expected)
            torch.testing.assert_close(torch.stack(found), torch.stack(expected), rtol=1e-4, atol=1e-4)
    assert_looked_ahead()


def test_scores_of_samples(story: Story) -> None:
    kwargs = {"return_dict_in_generate": True, "output_scores": True, "top_k": 5, "temperature": 0.5, "do_sample": True}
    theirs, ours = both(story[0], lambda: encode(story), **kwargs)
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    torch.testing.assert_close(torch.stack(ours.scores), torch.stack(theirs.scores), rtol=1e-4, atol=1e-4)


# Caches


def ones(text: Tensor) -> Tensor:
    """Nothing is padding, whatever a random model writes."""
    return torch.ones_like(text)


CACHED = ("llama", "mistral-sliding", "gemma3", "gemma4", "gpt2", "llama4", "deepseek_v3")


@pytest.mark.parametrize("name", CACHED)
@pytest.mark.parametrize("lengths", [(9,), (9, 9)], ids=("alone", "pair"))
def test_returned_cache_can_be_continued_from(name: str, lengths: tuple[int, ...]) -> None:
    model, text = tiny_model(BY_NAME[name]), words(*lengths)["input_ids"]
    at_once = model.generate(text, attention_mask=ones(text), do_sample=False, max_new_tokens=60)
    first = lade.generate(
        model,
        input_ids=text,
        attention_mask=ones(text),
        config=CONFIG,
        do_sample=False,
        max_new_tokens=30,
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
    second = model.generate(text, attention_mask=ones(text), past_key_values=cache, do_sample=False, max_new_tokens=30)
    assert second.tolist() == at_once.tolist()


@pytest.mark.parametrize("name", CACHED)
@pytest.mark.parametrize("lengths", [(9,), (9, 9)], ids=("alone", "pair"))
@pytest.mark.parametrize("begun", [True, False], ids=("begun", "empty"))
def test_own_cache_is_extended_in_place(name: str, lengths: tuple[int, ...], begun: bool) -> None:
    model, text = tiny_model(BY_NAME[name]), words(*lengths)["input_ids"]
    at_once = model.generate(text, attention_mask=ones(text), do_sample=False, max_new_tokens=52)
    cache = DynamicCache(config=model.config)
    if begun:
        text = model.generate(
            text, attention_mask=ones(text), past_key_values=cache, do_sample=False, max_new_tokens=12
        )
    turn = lade.generate(
        model,
        input_ids=text,
        attention_mask=ones(text),
        past_key_values=cache,
        config=CONFIG,
        do_sample=False,
        max_new_tokens=42 + 9 - text.shape[1],
        return_dict_in_generate=True,
    )
    assert_looked_ahead()
    assert turn.past_key_values is cache
    assert cache.get_seq_length() == turn.sequences.shape[1] - 1
    assert [type(layer) for layer in cache.layers] == [
        type(layer) for layer in DynamicCache(config=model.config).layers
    ]
    text = turn.sequences
    last = model.generate(text, attention_mask=ones(text), past_key_values=cache, do_sample=False, max_new_tokens=10)
    assert last.tolist() == at_once.tolist()


def test_cache_without_layers(story: Story) -> None:
    cache = DynamicCache()
    theirs, ours = both(story[0], lambda: encode(story) | {"past_key_values": DynamicCache()})
    assert ours.tolist() == theirs.tolist()
    assert_looked_ahead()
    lade.generate(story[0], **encode(story), past_key_values=cache, do_sample=False, max_new_tokens=NEW_TOKENS)
    assert cache.get_seq_length() == ours.shape[1] - 1


@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize("texts", [(PROMPT,), tuple(PROMPTS)], ids=("alone", "padded"))
def test_prefill_in_chunks(size: int, texts: tuple[str, ...], story: Story) -> None:
    assert_same(story, texts, prefill_chunk_size=size)


# Wrapped models


@pytest.mark.usefixtures("augmented")
def test_pipeline(story: Story) -> None:
    pipe = pipeline("text-generation", model=story[0], tokenizer=story[1])
    kwargs = {"do_sample": False, "max_new_tokens": NEW_TOKENS, "return_full_text": False}
    ours = pipe(PROMPT, **kwargs)
    assert_looked_ahead()
    lade.restore_all()
    assert ours == pipe(PROMPT, **kwargs)


@pytest.mark.usefixtures("augmented")
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("name", ["llama", "mistral-sliding"])
def test_peft(name: str) -> None:
    settings = peft.LoraConfig(task_type="CAUSAL_LM", r=4, init_lora_weights=False, target_modules=["q_proj", "v_proj"])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = peft.get_peft_model(copy.deepcopy(tiny_model(BY_NAME[name], "sdpa")), settings).eval()
    kwargs = words(9) | {"do_sample": False, "max_new_tokens": NEW_TOKENS}
    ours = model.generate(**kwargs)
    assert_looked_ahead()
    assert lade.generate(model, **kwargs, config=CONFIG).tolist() == ours.tolist()
    assert_looked_ahead()
    lade.restore_all()
    assert ours.tolist() == model.generate(**kwargs).tolist()
    assert ours.tolist() != tiny_model(BY_NAME[name], "sdpa").generate(**kwargs).tolist()
