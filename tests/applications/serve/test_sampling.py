"""Every field that shapes a text, with drafts and without: the text is that of plain `generate` alone."""

import random
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
from crowds import PROMPTS, Asked, crowd, differences, drawn, expected
from served import Served

FIELDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "nothing": {},
    "temperature": {"temperature": 0.6},
    "top_p": {"top_p": 0.7},
    "top_p 0": {"top_p": 0},
    "top_k": {"top_k": 4},
    "min_p": {"min_p": 0.2},
    "frequency_penalty": {"temperature": 0, "frequency_penalty": 1.5},
    "negative penalties": {"temperature": 0, "frequency_penalty": -1, "presence_penalty": -2},
    "presence_penalty": {"temperature": 0, "presence_penalty": 1.5},
    "repetition_penalty": {"temperature": 0, "repetition_penalty": 1.4},
    "logit_bias": {"temperature": 0, "logit_bias": {"0": -100, "268": 7, "300": 3}},
    "stop": {"temperature": 0, "stop": ["number", "nothing like it"]},
    "all": {"temperature": 0.9, "top_p": 0.9, "top_k": 50, "min_p": 0.01, "presence_penalty": 0.5, "stop": "\n\n"},
}


BASE = {"prompt": PROMPTS[1], "seed": 11, "max_tokens": 16}


@pytest.fixture(scope="module")
def plain_of(served: Served) -> Callable[[str], list[tuple[str, str]]]:
    """The text of plain decoding with some fields, decoded once."""
    return lru_cache(lambda name: expected(served, BASE | FIELDS[name]))


@pytest.mark.parametrize("name", FIELDS)
def test_the_text_is_plain_decoding_s(
    served: Served, name: str, plain_of: Callable[[str], list[tuple[str, str]]]
) -> None:
    fields, plain = BASE | FIELDS[name], plain_of(name)
    for drafts in (True, False):
        asked = Asked(fields | {"lade": {"speculation": drafts}}, 0, None)
        (found,) = served.run(lambda asked=asked: crowd(served, [asked]))  # type: ignore[misc]
        assert not differences(asked, found, plain)


def test_the_fields_change_the_text(plain_of: Callable[[str], list[tuple[str, str]]]) -> None:
    """Each of them; else the test above would show nothing."""
    found = {name: plain_of(name)[0] for name in FIELDS}
    for name, fields in FIELDS.items():
        same = "greedy" if fields.get("temperature") == 0 else "nothing"
        assert name == same or found[name] != found[same], name
    assert found["top_p 0"] == found["greedy"]


def test_a_crowd(served: Served) -> None:
    """Requests that arrive at random, stream or not, and leave early: neighbours do not matter."""
    draws = random.Random("a crowd")
    asked = [drawn(draws) for _ in range(20)]
    answers = served.run(lambda: crowd(served, asked))
    lines = [
        line
        for each, found in zip(asked, answers, strict=True)
        for line in differences(each, found, expected(served, each.fields))
    ]
    assert not lines
    assert any(each.leaves is not None for each in asked)
    served.settled()


def test_temperatures_near_zero_are_greedy(served: Served) -> None:
    assert served.text(temperature=1e-9, max_tokens=8, seed=3) == served.text(temperature=0, max_tokens=8)


def test_without_a_seed_texts_differ(served: Served) -> None:
    assert len({served.text(temperature=1.5, max_tokens=16) for _ in range(4)}) > 1


@pytest.mark.parametrize("seed", [-(1 << 63), -1, 0, (1 << 63) - 1])
def test_every_seed_is_taken(served: Served, seed: int) -> None:
    assert served.text(temperature=1, seed=seed, max_tokens=3) == served.text(temperature=1, seed=seed, max_tokens=3)
