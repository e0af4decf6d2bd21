"""`lade.generate` and `decoding_method`: the same text with nothing patched, and errors that say what is wrong."""

import copy
from typing import Any

import pytest
import torch
from families import BRANCHABLE, POSITIONS, VOCAB
from sidebyside import Recorder
from tiny import tiny_model, words
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel, PreTrainedTokenizerBase

import lade
from lade.config.default import default_config

BY_NAME = {family.name: family for family in BRANCHABLE}
CONFIG = lade.LookaheadConfig(mode="lookahead", ngram=4, window=5, guesses=5, pool_from_prompt=True)
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 30}
Story = tuple[PreTrainedModel, PreTrainedTokenizerBase]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny_model(BY_NAME["llama"], "sdpa")


# The same text


@pytest.mark.compat
@pytest.mark.parametrize("sample", [True, False])
@pytest.mark.parametrize("lengths", [(9,), (9, 4, 6)], ids=str)
def test_generate_writes_plain_text(lengths: tuple[int, ...], sample: bool, model: PreTrainedModel) -> None:
    kwargs = words(*lengths) | GREEDY | ({"do_sample": True, "temperature": 0.5} if sample else {})
    torch.manual_seed(0)
    plain = model.generate(**kwargs)
    torch.manual_seed(0)
    assert lade.generate(model, **kwargs, config=CONFIG).tolist() == plain.tolist()
    assert lade.last_stats().accepted_tokens > 0


def test_generate_patches_nothing(model: PreTrainedModel) -> None:
    original = GenerationMixin.__dict__["_sample"]

    def looks(ids: Tensor, scores: Tensor) -> Tensor:
        assert GenerationMixin.__dict__["_sample"] is original
        return scores

    lade.generate(model, **words(5), **GREEDY, config=CONFIG, logits_processor=[looks])
    assert lade.last_stats().fallback is None


def test_generate_while_switched_on(model: PreTrainedModel, augmented: None) -> None:
    """One lookahead, and where it cannot be, one warning."""
    before = len(lade.log_history())
    lade.generate(model, **words(5), **GREEDY, config=CONFIG)
    assert len(lade.log_history()) == before + 1
    with pytest.warns(lade.FallbackWarning) as caught:
        lade.generate(model, **words(5), **GREEDY, config=CONFIG, use_cache=False)
    assert len(caught) == 1
    assert len(lade.log_history()) == before + 2


def test_generate_without_settings_takes_the_default(model: PreTrainedModel, default_settings: None) -> None:
    tokens = []
    for config in ({"LEVEL": 2, "WINDOW_SIZE": 1}, {"LEVEL": 4, "WINDOW_SIZE": 9}):
        lade.config_lade(MODE="lookahead", **config)
        lade.generate(model, **words(5), **GREEDY)
        tokens.append(lade.last_stats().forward_tokens)
    assert tokens[0] < tokens[1]


def test_settings_are_taken_when_the_call_begins(model: PreTrainedModel, default_settings: None) -> None:
    """Whoever changes them meanwhile changes the next call."""

    class Meddler(Recorder):
        def put(self, value: Tensor) -> None:
            lade.config_lade(MODE="lookahead", LEVEL=2, WINDOW_SIZE=1, GUESS_SET_SIZE=1)

    lade.config_lade(MODE="lookahead", LEVEL=4, WINDOW_SIZE=9)
    lade.generate(model, **words(5), **GREEDY)
    undisturbed = lade.last_stats().forward_tokens
    lade.generate(model, **words(5), **GREEDY, streamer=Meddler())
    assert lade.last_stats().forward_tokens == undisturbed
    lade.generate(model, **words(5), **GREEDY)
    assert lade.last_stats().forward_tokens < undisturbed


def test_generate_streams(model: PreTrainedModel) -> None:
    """The prompt once, every token once, one end."""
    ours, theirs = Recorder(), Recorder()
    model.generate(**words(5), **GREEDY, streamer=theirs)
    lade.generate(model, **words(5), **GREEDY, config=CONFIG, streamer=ours)
    assert ours.calls == theirs.calls


def test_stop_strings_need_a_tokenizer(shipped: Story) -> None:
    model, tokenizer = shipped
    prompt = tokenizer("Once upon a time, there was a", return_tensors="pt")["input_ids"]
    kwargs = {"input_ids": prompt, "do_sample": False, "max_new_tokens": 40, "stop_strings": [" big"]}
    with pytest.raises(ValueError, match=r"tokenizer must be .* stop_strings .*, got None"):
        lade.generate(model, **kwargs, config=CONFIG)
    ours = lade.generate(model, **kwargs, config=CONFIG, tokenizer=tokenizer)
    assert ours.tolist() == model.generate(**kwargs, tokenizer=tokenizer).tolist()
    assert ours.shape[1] < prompt.shape[1] + 40


def test_generation_config_is_left_as_it_was(model: PreTrainedModel) -> None:
    settings = GenerationConfig(max_new_tokens=7, do_sample=False, pad_token_id=0)
    before = copy.deepcopy(settings.to_dict()), copy.deepcopy(model.generation_config.to_dict())
    assert lade.generate(model, **words(5), generation_config=settings, config=CONFIG).shape == (1, 12)
    assert (settings.to_dict(), model.generation_config.to_dict()) == before


def test_a_prompt_that_fills_the_positions() -> None:
    """One token can still be chosen after it; no position beyond the last is asked for."""
    model = tiny_model(BY_NAME["gpt2"], "sdpa")
    kwargs = words(POSITIONS) | {"do_sample": False, "max_new_tokens": 1}
    assert lade.generate(model, **kwargs, config=CONFIG).tolist() == model.generate(**kwargs).tolist()


# transformers' own hook


@pytest.mark.compat
def test_decoding_method(model: PreTrainedModel) -> None:
    ours = model.generate(**words(9, 4), **GREEDY, custom_generate=lade.decoding_method(CONFIG))
    assert lade.last_stats().accepted_tokens > 0
    assert ours.tolist() == model.generate(**words(9, 4), **GREEDY).tolist()


def test_decoding_method_streams(model: PreTrainedModel) -> None:
    """The hook drops the streamer behind the prompt, so it is bound."""
    ours, theirs = Recorder(), Recorder()
    model.generate(**words(5), **GREEDY, streamer=theirs)
    method = lade.decoding_method(CONFIG, streamer=ours)
    model.generate(**words(5), **GREEDY, streamer=ours, custom_generate=method)
    assert ours.calls == theirs.calls


def test_decoding_method_takes_the_settings_of_the_time(model: PreTrainedModel, default_settings: None) -> None:
    method = lade.decoding_method()
    tokens = []
    for window in (1, 9):
        lade.config_lade(MODE="lookahead", LEVEL=4, WINDOW_SIZE=window)
        model.generate(**words(5), **GREEDY, custom_generate=method)
        tokens.append(lade.last_stats().forward_tokens)
    assert tokens[0] < tokens[1]


def test_decoding_method_knows_no_beams(model: PreTrainedModel) -> None:
    with pytest.raises(ValueError, match=r"num_beams must be 1 .*, got 3"):
        model.generate(**words(5), **GREEDY, num_beams=3, custom_generate=lade.decoding_method(CONFIG))


# Bad input

ONE = torch.tensor([[5, 6, 7]])
BAD: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "nothing": ({}, ("input_ids", "NoneType", "[rows, tokens]")),
    "a list": ({"input_ids": [[5, 6]]}, ("input_ids", "list", "[rows, tokens]")),
    "a text": ({"input_ids": "Once upon"}, ("input_ids", "str", "[rows, tokens]")),
    "one dimension": ({"input_ids": ONE[0]}, ("input_ids", "(3,)", "[rows, tokens]")),
    "three dimensions": ({"input_ids": ONE[None]}, ("input_ids", "(1, 1, 3)", "[rows, tokens]")),
    "no tokens": ({"input_ids": ONE[:, :0]}, ("input_ids", "(1, 0)", "at least one token")),
    "no rows": ({"input_ids": ONE[:0]}, ("input_ids", "(0, 3)", "at least one token")),
    "floats": ({"input_ids": ONE.float()}, ("input_ids", "float32", "integers")),
    "booleans": ({"input_ids": ONE.bool()}, ("input_ids", "bool", "integers")),
    "id too high": ({"input_ids": torch.tensor([[5, VOCAB]])}, ("input_ids", str(VOCAB), f"0 to {VOCAB - 1}")),
    "id below 0": ({"input_ids": torch.tensor([[5, -1]])}, ("input_ids", "-1", f"0 to {VOCAB - 1}")),
    "too long": (
        {"input_ids": torch.full((1, POSITIONS + 1), 5)},
        ("input_ids", str(POSITIONS + 1), f"at most the model's {POSITIONS}"),
    ),
    "mask of other length": (
        {"input_ids": ONE, "attention_mask": torch.ones(1, 4)},
        ("attention_mask", "(1, 4)", "(1, 3)"),
    ),
    "mask of other rows": (
        {"input_ids": ONE, "attention_mask": torch.ones(2, 3)},
        ("attention_mask", "(1, 3)"),
    ),
    "mask of one dimension": ({"input_ids": ONE, "attention_mask": torch.ones(3)}, ("attention_mask", "(1, 3)")),
    "mask that is a list": ({"input_ids": ONE, "attention_mask": [[1, 1, 1]]}, ("attention_mask", "(1, 3)")),
    "row without a token": (
        {"input_ids": ONE.expand(2, 3), "attention_mask": torch.tensor([[1, 1, 1], [0, 0, 0]])},
        ("attention_mask", "empty prompt"),
    ),
    "positions of other length": (
        {"input_ids": ONE, "position_ids": torch.arange(4)[None]},
        ("position_ids", "(1, 4)", "(1, 3)"),
    ),
    "embeddings": ({"inputs_embeds": torch.ones(1, 3, 32)}, ("inputs_embeds", "input_ids")),
    "beams": ({"input_ids": ONE, "num_beams": 4}, ("num_beams must be 1", "got 4")),
    "beams in the settings": (
        {"input_ids": ONE, "generation_config": GenerationConfig(num_beams=4)},
        ("num_beams must be 1", "got 4"),
    ),
    "settings of another kind": (
        {"input_ids": ONE, "config": {"window": 7}},
        ("config must be", "LookaheadConfig", "{'window': 7}"),
    ),
}


class TouchedError(Exception):
    """The model was called."""


@pytest.mark.parametrize(("kwargs", "parts"), BAD.values(), ids=BAD)
def test_bad_input(kwargs: dict[str, Any], parts: tuple[str, ...], model: PreTrainedModel) -> None:
    """A ValueError names argument, value and what is allowed, before the model is called; nothing is changed."""

    def touched(*args: Any, **kwargs: Any) -> None:
        raise TouchedError

    before = GenerationMixin.__dict__["_sample"], default_config(), len(lade.log_history()), torch.get_rng_state()
    hook = model.register_forward_pre_hook(touched)
    try:
        with pytest.raises(ValueError, match=parts[0]) as caught:
            lade.generate(model, **kwargs)
    finally:
        hook.remove()
    assert all(part in str(caught.value) for part in parts)
    patch_point, settings, calls, state = before
    assert GenerationMixin.__dict__["_sample"] is patch_point
    assert default_config() is settings
    assert len(lade.log_history()) == calls
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("thing", "told"), [(None, "None"), ("gpt2", "'gpt2'"), (torch.nn.Linear(2, 2), "Linear")])
def test_not_a_model(thing: Any, told: str) -> None:
    with pytest.raises(ValueError, match=f"model must be a transformers model that can generate, got {told}"):
        lade.generate(thing, ONE)


@pytest.mark.parametrize("config", [{"window": 7}, 7, "lookahead", lade.LookaheadConfig])
def test_bad_settings_of_a_decoding_method(config: Any) -> None:
    with pytest.raises(ValueError, match=r"config must be a lade\.LookaheadConfig or None, got "):
        lade.decoding_method(config)


def test_whatever_plain_decoding_accepts_is_accepted_through_the_patch(model: PreTrainedModel, augmented: None) -> None:
    """Strict errors belong to `lade.generate`: past the model's positions a rotary model goes on."""
    long = words(POSITIONS + 5) | {"do_sample": False, "max_new_tokens": 5}
    ours = model.generate(**long)
    lade.restore_all()
    assert ours.tolist() == model.generate(**long).tolist()
    with pytest.raises(ValueError, match="input_ids"):
        lade.generate(model, **long)
