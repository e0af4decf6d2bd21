"""The same call plainly and with lade, mostly on the trained model that ships: what both must share."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer

import lade
import lade.models

CONFIG = lade.LookaheadConfig(mode="lookahead", ngram=5, window=7, guesses=7, pool_from_prompt=True)
PROMPT = "Once upon a time, there was a little girl named Lily. She"
PROMPTS = (PROMPT, "Tom had a dog", "One day, a bird saw a big")
NEW_TOKENS = 28
Story = tuple[PreTrainedModel, PreTrainedTokenizerBase]


class Recorder(BaseStreamer):
    """A streamer that remembers every call."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def put(self, value: Tensor) -> None:
        self.calls.append((tuple(value.shape), value.tolist(), str(value.device)))

    def end(self) -> None:
        self.calls.append("end")


@cache
def story() -> Story:
    """The model that ships and its tokenizer, which pads on the left."""
    model, tokenizer = lade.models.load("stories260K")
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.unk_token
    return model, tokenizer


def encode(*texts: str) -> dict[str, Tensor]:
    batch = story()[1](list(texts or [PROMPT]), return_tensors="pt", padding=True)
    return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}


def token(text: str) -> int:
    return story()[1].encode(text, add_special_tokens=False)[-1]


def both(model: PreTrainedModel, inputs: Callable[[], dict[str, Any]], **kwargs: Any) -> tuple[Any, Any]:
    """The same call plainly and with lade, each with inputs of its own and the same seed.

    Plain decoding runs in inference mode, which computes the same and takes less time.
    """
    kwargs = {"max_new_tokens": NEW_TOKENS, "do_sample": False} | kwargs
    torch.manual_seed(3)
    with torch.inference_mode():
        theirs = model.generate(**inputs(), **kwargs)
    torch.manual_seed(3)
    return theirs, lade.generate(model, **inputs(), config=CONFIG, **kwargs)


def assert_looked_ahead() -> None:
    stats = lade.last_stats()
    assert stats is not None
    assert stats.fallback is None
    assert stats.accepted_tokens > 0


def assert_same(texts: tuple[str, ...] = (), **kwargs: Any) -> Tensor:
    theirs, ours = both(story()[0], lambda: encode(*texts), **kwargs)
    assert ours.tolist() == theirs.tolist()
    assert_looked_ahead()
    return ours


def sequences(out: Any) -> list[list[int]]:
    return (out if isinstance(out, torch.Tensor) else out.sequences).tolist()


def assert_falls_back(model: PreTrainedModel, inputs: Callable[[], dict[str, Any]], reason: str) -> None:
    """Plain text through the patch, and exactly one warning that holds the reason, which the statistics repeat."""
    torch.manual_seed(0)
    expected = sequences(model.generate(**inputs()))
    torch.manual_seed(0)
    with augmented(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        text = sequences(model.generate(**inputs()))
    reasons = [str(warning.message) for warning in caught if warning.category is lade.FallbackWarning]
    assert text == expected
    assert len(reasons) == 1
    assert reason in reasons[0].lower()
    assert reason in lade.last_stats().fallback.lower()


@contextmanager
def augmented() -> Iterator[None]:
    lade.augment_all()
    try:
        yield
    finally:
        lade.restore_all()
