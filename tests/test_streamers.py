"""Streamers get the calls that plain decoding makes: the prompt, one token per row at a time, the end."""

import threading

import pytest
from sidebyside import CONFIG, NEW_TOKENS, PROMPT, PROMPTS, Recorder, assert_looked_ahead, both, encode, story, token
from transformers import TextIteratorStreamer, TextStreamer

import lade


@pytest.mark.parametrize("texts", [(PROMPT,), PROMPTS], ids=("alone", "padded"))
@pytest.mark.parametrize("sample", [False, True])
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
