"""Text piece by piece: the whole is what the tokenizer decodes, stop strings are found wherever pieces end."""

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from served import NAME

from lade.applications.serve.stops import StopText
from lade.applications.serve.text import BROKEN, Detokenizer, StopSearch

TEXTS = st.text(st.sampled_from("ab é√😀\n"), max_size=30)
STOPS = st.lists(st.text(st.sampled_from("ab é😀"), min_size=1, max_size=3), max_size=3)


def tokenizers() -> list[Any]:
    from transformers import AutoTokenizer

    from lade.models.shipped import FOLDER

    return [AutoTokenizer.from_pretrained(FOLDER / name) for name in (NAME, "stories260K")]


TOKENIZERS = tokenizers()


@given(TEXTS, TEXTS, st.sampled_from(TOKENIZERS))
def test_pieces_make_the_whole_text(prompt: str, answer: str, tokenizer: Any) -> None:
    before, new = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, answer))
    stream = Detokenizer(tokenizer, before)
    pieces = [stream.add(token) for token in new] + [stream.end()]
    whole = tokenizer.decode([*before, *new], skip_special_tokens=True)
    assert tokenizer.decode(before, skip_special_tokens=True) + "".join(pieces) == whole
    assert BROKEN not in "".join(pieces)


def test_a_character_that_does_not_end_comes_at_the_end() -> None:
    tokenizer = TOKENIZERS[0]
    tokens = tokenizer("😀", add_special_tokens=False)["input_ids"]
    assert len(tokens) > 1
    stream = Detokenizer(tokenizer, [])
    assert [stream.add(token) for token in tokens[:-1]] == [""] * (len(tokens) - 1)
    assert stream.end() == BROKEN


@given(st.lists(TEXTS, max_size=8), STOPS)
def test_a_stop_string_is_found_as_soon_as_it_is_there(pieces: list[str], stops: list[str]) -> None:
    search, whole = StopSearch(stops), ""
    for piece in pieces:
        whole += piece
        places = [whole.find(stop) for stop in stops if stop in whole]
        assert search.add(piece) == bool(places)
        if places:
            assert search.text == whole[: min(places)]
            assert search.certain == min(places)
            return
        held = whole[search.certain :]
        assert held == "" or any(stop.startswith(held) for stop in stops)
        longer = range(len(held) + 1, len(whole) + 1)
        assert not any(stop.startswith(whole[-size:]) for stop in stops for size in longer)
    assert search.text == whole


@given(
    st.text(st.sampled_from("ab \n"), max_size=40), st.lists(st.text(st.sampled_from("ab "), min_size=1), min_size=1)
)
def test_the_criterion_ends_with_the_token_that_completes_a_stop_string(answer: str, stops: list[str]) -> None:
    """Whether it is asked once per token or once per step."""
    tokenizer = TOKENIZERS[0]
    prompt = tokenizer("x = ", add_special_tokens=False)["input_ids"]
    new = tokenizer(answer, add_special_tokens=False)["input_ids"]
    each, last = StopText(tokenizer, prompt, stops), StopText(tokenizer, prompt, stops)
    for size in range(1, len(new) + 1):
        ids = torch.tensor([[*prompt, *new[:size]]])
        text = tokenizer.decode(ids[0])[len(tokenizer.decode(prompt)) :]
        assert each(ids, None).tolist() == [any(stop in text for stop in stops)]
    assert last(torch.tensor([[*prompt, *new]]), None).tolist() == [any(stop in answer for stop in stops)]


def test_the_prompt_is_not_searched() -> None:
    tokenizer = TOKENIZERS[0]
    prompt = tokenizer("def f(): return 1\n", add_special_tokens=False)["input_ids"]
    assert StopText(tokenizer, prompt, ["return"])(torch.tensor([prompt]), None).tolist() == [False]
