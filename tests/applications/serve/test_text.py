"""Text piece by piece: the whole is what the tokenizer decodes, stop strings are found wherever pieces end."""

from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from served import NAME

from lade.applications.serve.answer import Choice
from lade.applications.serve.stops import StopText
from lade.applications.serve.text import BROKEN, AnswerText, Detokenizer, StopSearch
from lade.applications.serve.worker import Update
from lade.core.logprobs import TokenLogprob

TEXTS = st.text(st.sampled_from("ab é√😀\n"), max_size=30)
STOPS = st.lists(st.text(st.sampled_from("ab é😀"), min_size=1, max_size=3), max_size=3)


def tokenizers() -> list[Any]:
    from transformers import AutoTokenizer

    from lade.models.shipped import FOLDER

    return [AutoTokenizer.from_pretrained(FOLDER / name) for name in (NAME, "stories260K")]


TOKENIZERS = tokenizers()


def answer_text(prompt: list[int], stops: list[str]) -> AnswerText:
    return AnswerText(Detokenizer(TOKENIZERS[0], prompt), StopSearch(stops), frozenset())


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
            assert search.certain(len(whole)) == min(places)
            return
        held = whole[search.certain(len(whole)) :]
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
    each, last = (StopText(answer_text(prompt, stops), len(prompt)) for _ in range(2))
    for size in range(1, len(new) + 1):
        ids = torch.tensor([[*prompt, *new[:size]]])
        text = tokenizer.decode(ids[0])[len(tokenizer.decode(prompt)) :]
        assert each(ids, None).tolist() == [any(stop in text for stop in stops)]
    assert last(torch.tensor([[*prompt, *new]]), None).tolist() == [any(stop in answer for stop in stops)]


def test_the_prompt_is_not_searched() -> None:
    tokenizer = TOKENIZERS[0]
    prompt = tokenizer("def f(): return 1\n", add_special_tokens=False)["input_ids"]
    criterion = StopText(answer_text(prompt, ["return"]), len(prompt))
    assert criterion(torch.tensor([prompt]), None).tolist() == [False]


@given(TEXTS, STOPS, st.lists(st.integers(1, 4), min_size=1), st.data())
def test_the_criterion_may_be_ahead_of_what_is_told(
    answer: str, stops: list[str], sizes: list[int], data: st.DataObject
) -> None:
    """The engine's thread adds tokens while the event loop tells earlier ones: the text and its tokens are the same."""
    new = TOKENIZERS[0](answer, add_special_tokens=False)["input_ids"]
    texts = [TOKENIZERS[0].decode(new[:size]) for size in range(len(new) + 1)]
    last = next((size for size, text in enumerate(texts) if any(stop in text for stop in stops)), len(new))
    new, whole = new[:last], texts[last]
    places = [whole.find(stop) for stop in stops if stop in whole]
    told = []
    for ahead in (False, True):
        choice = Choice(0, SimpleNamespace(emitted=len(new), tokens=new), answer_text([], stops), frozenset(), most=99)  # type: ignore[arg-type]
        criterion, begin, parts, noted = StopText(choice.whole, 0), 0, "", list[TokenLogprob]()
        while choice.finish is None:
            end = min(len(new), begin + sizes[begin % len(sizes)])
            if ahead:
                criterion(torch.tensor([new[: data.draw(st.integers(end, len(new)))]]), None)
            steps = [TokenLogprob(token, 0.0, ()) for token in new[begin:end]]
            delta = choice.take(Update(None, new[begin:end], steps, ended=end == len(new)))
            parts, begin, noted = parts + delta.text, end, noted + delta.tokens
            assert whole.startswith(parts)
        told.append((parts, noted, choice.finish))
    assert told[0] == told[1]
    assert told[0][0] == (whole[: min(places)] if places else whole)
