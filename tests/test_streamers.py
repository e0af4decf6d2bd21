"""Streamers get the calls that plain decoding makes: the prompt, one token per row at a time, the end."""

import threading

import pytest
import torch
from sidebyside import (
    CONFIG,
    NEW_TOKENS,
    PROMPT,
    PROMPTS,
    Recorder,
    assert_falls_back,
    assert_looked_ahead,
    both,
    encode,
    story,
    token,
)
from torch import Tensor
from transformers import TextIteratorStreamer, TextStreamer

import lade


@pytest.mark.parametrize(
    ("texts", "sample"), [((PROMPT,), False), ((PROMPT,), True), (PROMPTS, False)], ids=("alone", "sampled", "padded")
)
def test_streamer_gets_the_same_calls(sample: bool, texts: tuple[str, ...]) -> None:
    model, recorders = story()[0], [Recorder(), Recorder()]
    turns = iter(recorders)
    both(
        model,
        lambda: encode(*texts) | {"streamer": next(turns)},
        do_sample=sample,
        eos_token_id=token("She"),
        max_new_tokens=40,
    )
    assert recorders[1].calls == recorders[0].calls
    assert recorders[1].calls[-1] == "end"
    assert_looked_ahead()


def test_text_streamer(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for generate in (story()[0].generate, lambda **kwargs: lade.generate(story()[0], config=CONFIG, **kwargs)):
        generate(
            **encode(),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            streamer=TextStreamer(story()[1], skip_prompt=True),
        )
        printed.append(capsys.readouterr().out)
    assert printed[1] == printed[0]
    assert printed[0].strip()


def test_text_iterator_streamer() -> None:
    model, tokenizer = story()
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60)
    kwargs = encode() | {"do_sample": False, "max_new_tokens": NEW_TOKENS}
    thread = threading.Thread(
        target=lade.generate, args=(model,), kwargs=kwargs | {"config": CONFIG, "streamer": streamer}
    )
    thread.start()
    pieces = list(streamer)
    thread.join()
    expected = model.generate(**kwargs)[0, kwargs["input_ids"].shape[1] :]
    assert "".join(pieces) == tokenizer.decode(expected)
    assert len(pieces) > 3


class Drawing(Recorder):
    """A streamer that draws random numbers, as for a delay."""

    def put(self, value: Tensor) -> None:
        super().put(value)
        torch.rand(1)


def coin(input_ids: Tensor, scores: Tensor, **kwargs: object) -> Tensor:
    return torch.rand(input_ids.shape[0]) < 0.02


DRAWING = {
    "processor": lambda: {"logits_processor": [lambda ids, scores: scores + torch.randn_like(scores) / 9]},
    "criterion": lambda: {"stopping_criteria": [coin]},
    "allowed tokens": lambda: {"prefix_allowed_tokens_fn": lambda row, ids: torch.randperm(500)[:400].tolist()},
    "streamer": lambda: {"streamer": Drawing()},
}


@pytest.mark.parametrize("name", DRAWING)
def test_code_that_draws_random_numbers(name: str) -> None:
    """Text and generator end as in plain decoding, though it draws from the generator that sampling uses."""
    found = []
    for generate in (
        story()[0].generate,
        lambda **kwargs: lade.generate(story()[0], config=lade.LookaheadConfig(), **kwargs),
    ):
        torch.manual_seed(3)
        text = generate(**encode(), **DRAWING[name](), do_sample=True, max_new_tokens=40)
        found.append((text.tolist(), torch.rand(1)))
    assert found[0] == found[1]
    assert lade.last_stats().fallback is None


def test_a_streamer_of_a_sampled_batch() -> None:
    """Rows advance unequally: what it draws would come between other tokens."""
    inputs = {"do_sample": True, "max_new_tokens": 9}
    assert_falls_back(story()[0], lambda: encode(*PROMPTS) | inputs | {"streamer": Drawing()}, "streamer of your own")
