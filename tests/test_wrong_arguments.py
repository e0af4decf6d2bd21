"""Every public function refuses what it cannot use in one sentence, before any work.

The sentence names the argument, its value in short, and what is allowed. Arguments that `model.generate` takes are its.
"""

import copy
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from families import BRANCHABLE
from tiny import tiny_model
from transformers import BatchEncoding, GenerationMixin, PreTrainedModel

import lade
from lade import models
from lade.config.default import PRESET, default_config
from lade.config.settings import FIELDS
from lade.memory.pools import shared_pool

ONE = torch.tensor([[5, 6, 7]])
HUGE = 10**5000
# Nobody's arguments: what a call returns, and a warning.
NOT_CALLED = {"FallbackWarning", "GenerationStats", "RankError", "Request"}


def a_model() -> PreTrainedModel:
    family = next(family for family in BRANCHABLE if family.name == "llama")
    return copy.deepcopy(tiny_model(family, "sdpa"))


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return untouchable(a_model())


@pytest.fixture(scope="module")
def other() -> PreTrainedModel:
    return untouchable(a_model())


class TouchedError(Exception):
    """A model was called."""


def untouchable(model: PreTrainedModel) -> PreTrainedModel:
    def touched(*args: Any, **kwargs: Any) -> None:
        raise TouchedError

    model.register_forward_pre_hook(touched)
    return model


Arguments = dict[str, Any]
# Parameter -> names of VALUES that it takes.
Allowed = dict[str, str]
SHARED = {"config": "none", "method": "none", "reference": "none", "contrast": "none"}
SIZES = dict.fromkeys(("window", "ngram", "guesses", "budget", "pool_size"), "number none huge")
CONFIG = SIZES | {
    "mode": "none",
    "adapt": "",
    "tenant": "none text",
    "sources": "none",
    "corpus": "none text",
    "pool_from_prompt": "none",
    "always_forward_one": "",
    "flash": "",
    "static": "none",
    "device_drafts": "",
    "seed": "number huge",
    "workers": "number none",
    "timeout": "number none",
    "debug": "number huge",
}
LENGTH = {"tokens": "number huge", "adapt": "", "threshold": "", "likeliest": ""}
TABLE: dict[str, Allowed] = {
    "generate": {
        "model": "model",
        "input_ids": "",
        "streamer": "none",
        "tokenizer": "none",
        "stop_strings": "none text",
    }
    | SHARED,
    "decoding_method": {"streamer": "none", "tokenizer": "none"} | SHARED,
    "lookahead": {"model": "model", "warm": "", "workers": "number none"} | SHARED,
    "assisted_generate": {
        "model": "model",
        "input_ids": "",
        "assistant": "",
        "draft_tokens": "number none huge",
        "tokenizer": "none",
        "assistant_tokenizer": "none",
        "streamer": "none",
    },
    "prompt_lookup_generate": {
        "model": "model",
        "input_ids": "",
        "draft_tokens": "number huge",
        "ngram": "number huge",
        "streamer": "none",
    },
    "LookaheadConfig": CONFIG,
    "config_lade": {name: CONFIG[field] + " none" for name, field in FIELDS.items()} | {PRESET: "none text"},
    "Contrast": {
        "amateur": "model",
        "weight": "number",
        "temperature": "number",
        "alpha": "",
        "vocabulary": "number none huge",
    },
    "DraftModel": {"draft": "model"} | LENGTH,
    "MultiCandidate": {"draft": "model", "widths": "", "replacement": "", "likeliest": ""},
    "SelfSpeculative": {"layers": "text"} | LENGTH,
    "self_speculative": {"layers": "text"},
    "SkipSet": {"attention": "", "mlp": ""},
    "Engine": {
        "model": "",
        "config": "none",
        "method": "none",
        "slots": "number",
        "prefix_bytes": "number huge",
        "kv_bytes": "number huge none",
    },
    "Corpus": {"texts": ""},
    "drop_pools": {"model": "none model", "tenant": "none text"},
    "save_pool": {"model": "model", "path": "text", "tenant": "text"},
    "load_pool": {"model": "model", "path": "text", "tenant": "text", "capacity": "number none huge"},
    "save_log": {"path": "text"},
    "pack_weights": {"model": "model"},
    "unpack_weights": {"model": "model"},
    "warm_up": {"model": "model", "top": "number", "tokenizer": "none", "progress": "none class model"},
    "models.load": {
        "path_or_name": "none text",
        "dtype": "none",
        "device": "none",
        "attn_implementation": "none text",
        "cache_dir": "none text",
        "warm": "",
        "quant": "none",
        "pack": "none",
    },
    "models.pull": {"name": "", "progress": "none class model"},
    "augment_all": {},
    "restore_all": {},
    "last_stats": {},
    "log_history": {},
}
VALUES = ("number", "none", "text", "model", "settings", "class", "inputs", "list", "huge", "bytes")
TRIED = [(function, parameter) for function, parameters in TABLE.items() for parameter in parameters]


def found(function: str) -> Callable[..., Any]:
    room, _, name = function.rpartition(".")
    return getattr(models if room else lade, name)


def given(value: str, model: PreTrainedModel) -> Any:
    return {
        "number": 5,
        "none": None,
        "text": "x",
        "model": model,
        "settings": {"window": 7},
        "class": lade.LookaheadConfig,
        "inputs": BatchEncoding({"input_ids": ONE, "attention_mask": torch.ones_like(ONE)}),
        "list": [1, "a", model],
        "huge": HUGE,
        "bytes": b"\0",
    }[value]


@pytest.fixture
def fitting(model: PreTrainedModel, other: PreTrainedModel, tmp_path: Path) -> dict[str, Arguments]:
    """Arguments that each function takes."""

    class Tokenizer:
        def get_vocab(self) -> dict[str, int]:
            return {"a": 0}

    both = {"model": model, "input_ids": ONE}
    shared_pool(model, "default")
    return {
        "generate": both | {"tokenizer": Tokenizer()},
        "lookahead": {"model": model},
        "assisted_generate": both | {"assistant": other, "tokenizer": Tokenizer(), "assistant_tokenizer": Tokenizer()},
        "prompt_lookup_generate": both,
        "Contrast": {"amateur": other},
        "Engine": {"model": model},
        "DraftModel": {"draft": other},
        "MultiCandidate": {"draft": other},
        "SelfSpeculative": {"layers": ((0,), ())},
        "save_pool": {"model": model, "path": tmp_path / "pool"},
        "load_pool": {"model": model, "path": tmp_path / "pool"},
        "warm_up": {"model": model},
        "models.pull": {"name": "smollm2-135m"},
    }


@pytest.fixture(autouse=True)
def nothing_is_changed(default_settings: None) -> Iterator[None]:
    before = GenerationMixin.__dict__["_sample"], default_config(), len(lade.log_history())
    state = torch.get_rng_state()
    yield
    assert (GenerationMixin.__dict__["_sample"], default_config(), len(lade.log_history())) == before
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("function", "parameter"), TRIED, ids=lambda name: name)
def test_wrong_arguments_are_told_in_one_sentence(
    function: str, parameter: str, model: PreTrainedModel, fitting: dict[str, Arguments], tmp_path: Path
) -> None:
    for value in set(VALUES) - set(TABLE[function][parameter].split()):
        arguments = fitting.get(function, {}) | {parameter: given(value, model)}
        with pytest.raises((ValueError, TypeError)) as caught:
            call(found(function), arguments)
        message = str(caught.value)
        assert re.search(rf"\b{parameter}\b", message), message
        assert re.search("allowed|must|needed|not available", message), message
        assert "\n" not in message
        assert len(message) < 350, message
        assert not any(tmp_path.iterdir())


def call(function: Callable[..., Any], arguments: Arguments) -> None:
    result = function(**arguments)
    if isinstance(result, AbstractContextManager):
        with result:
            pass


@pytest.mark.parametrize("function", [name for name, parameters in TABLE.items() if "path" in parameters])
def test_paths_that_no_system_has(function: str, fitting: dict[str, Arguments]) -> None:
    with pytest.raises(ValueError, match=r"path must be a path, .*, got 'x.x00'"):
        call(found(function), fitting.get(function, {}) | {"path": "x\0"})


def test_every_public_function_and_argument_is_tried() -> None:
    assert set(TABLE) | NOT_CALLED == set(lade.__all__) | {f"models.{name}" for name in models.__all__}
    for function in TABLE:
        parameters = inspect.signature(found(function)).parameters.values()
        named = {each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD}
        more = {"generate": {"stop_strings"}, "config_lade": {*FIELDS, PRESET}}.get(function, set())
        assert set(TABLE[function]) == named | more, function


@pytest.mark.parametrize("inputs", [BatchEncoding({"input_ids": ONE}), {"input_ids": ONE}], ids=["encoding", "dict"])
@pytest.mark.parametrize("function", ["generate", "assisted_generate", "prompt_lookup_generate"])
def test_forgotten_stars_are_told(function: str, inputs: Any, model: PreTrainedModel, other: PreTrainedModel) -> None:
    more = {"assistant": other} if function == "assisted_generate" else {}
    with pytest.raises(ValueError, match=rf"input_ids must be .*, got {type(inputs).__name__}: .*\*\*inputs"):
        found(function)(model, inputs, **more)
