"""The tokenizer: what it opens texts with, digits, round trips, and what it refuses."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade.models.pretrained.tokenizer import SMALLEST, SPECIAL, load_tokenizer, train_tokenizer

TOKENIZER = train_tokenizer(["def value(x):\n    return x + 12345\n", "value = 12345\n"] * 50, 320)


@given(st.text(max_size=40).filter(lambda text: not any(word in text for word in SPECIAL)))
def test_every_text_comes_back(text: str) -> None:
    ids = TOKENIZER(text)["input_ids"]
    assert ids[0] == 0
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == text


def test_every_digit_is_a_token() -> None:
    ids = TOKENIZER("12345", add_special_tokens=False)["input_ids"]
    assert TOKENIZER.convert_ids_to_tokens(ids) == list("12345")


def test_frequent_words_are_one_token() -> None:
    assert len(TOKENIZER(" return", add_special_tokens=False)["input_ids"]) == 1


def test_special_tokens_keep_their_places(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.convert_tokens_to_ids(list(SPECIAL)) == [0, 1, 2, 3]
    assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id) == (0, 0, 3)
    assert loaded("value")["input_ids"] == TOKENIZER("value")["input_ids"]


def test_a_loaded_tokenizer_opens_texts_even_if_it_did_not(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"post_processor": None}))
    assert load_tokenizer(tmp_path)("value")["input_ids"][0] == 0


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"vocabulary must be at least {SMALLEST}, .*, got 10"):
        train_tokenizer(["text"], 10)
    with pytest.raises(FileNotFoundError, match=r"holds no tokenizer\.json"):
        load_tokenizer(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text(file.read_text().replace("<|user|>", "<|other|>"))
    with pytest.raises(ValueError, match="first tokens are not"):
        load_tokenizer(tmp_path)
