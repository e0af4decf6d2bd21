"""The streamer of `lade chat`: whole characters, nothing of the stop text, and the colours of steps."""

import re
from typing import Any

import pytest
import torch

from lade.applications.chat.streamer import StepStreamer

ANSI = re.compile(r"\x1b\[\d+m")


class Bytes:
    """A tokenizer whose tokens are bytes, so that a character takes several."""

    def decode(self, tokens: list[int], **_: object) -> str:
        return bytes(tokens).decode(errors="replace")


def stream(text: bytes, steps: list[int] | None = None, **options: Any) -> list[str]:
    """What is written for `text`, sent byte by byte in steps of the given sizes."""
    written: list[str] = []
    streamer = StepStreamer(Bytes(), written.append, **options)
    streamer.put(torch.tensor([[1, 2, 3]]))
    tokens = iter(text)
    for size in steps or []:
        streamer.begin_step()
        for _ in range(size):
            streamer.put(torch.tensor([next(tokens)]))
    for token in tokens:
        streamer.put(torch.tensor([token]))
    streamer.end()
    return written


def test_streamer_writes_each_token_and_no_prompt() -> None:
    assert stream(b"abc") == ["a", "b", "c"]


def test_streamer_waits_for_whole_characters() -> None:
    assert stream("é→x".encode()) == ["é", "→", "x"]


def test_streamer_writes_a_broken_character_at_the_end() -> None:
    assert "".join(stream("é".encode()[:1])) == "\ufffd"


@pytest.mark.parametrize(
    ("text", "expected"),
    [(b"ab\nUser:", "ab"), (b"ab\nUser: hi", "ab"), (b"ab\nUs", "ab\nUs"), (b"\nUse\nUser:", "\nUse")],
)
def test_streamer_keeps_the_stop_text_back(text: bytes, expected: str) -> None:
    assert "".join(stream(text, stop="\nUser:")) == expected


def test_tokens_that_a_step_won_are_coloured() -> None:
    written = stream(b"abcdef", steps=[3, 1, 2], color=True)
    assert [ANSI.sub("", piece) for piece in written] == ["a", "b", "c", "d", "e", "f"]
    assert [bool(ANSI.search(piece)) for piece in written] == [False, True, True, False, False, True]


def test_neighbouring_steps_differ_in_colour() -> None:
    written = stream(b"abcd", steps=[2, 2], color=True)
    assert ANSI.findall(written[1])[0] != ANSI.findall(written[3])[0]


def test_no_colour_without_steps_or_without_the_wish() -> None:
    assert stream(b"abc", color=True) == ["a", "b", "c"]
    assert stream(b"abc", steps=[3]) == ["a", "b", "c"]
