"""Top-p filtering without a sort: the scores of transformers' warper, to the last bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopPLogitsWarper

import lade
from lade.engine.nucleus import LARGEST, Nucleus, without_sort

VOCABULARY = 2048
FEW, MORE = LARGEST
PROMPT = "def add(a, b):"


def agree(warper: TopPLogitsWarper, scores: torch.Tensor) -> bool:
    before = scores.clone()
    found, expected = Nucleus(warper)(torch.zeros(1, 1), scores), warper(torch.zeros(1, 1), before)
    return torch.equal(scores.nan_to_num(7), before.nan_to_num(7)) and torch.equal(
        found.nan_to_num(7), expected.nan_to_num(7)
    )


def random_scores(seed: int, scale: float, dtype: torch.dtype, ruled_out: int) -> torch.Tensor:
    scores = torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * scale
    scores[0, :ruled_out] = -math.inf
    return scores.to(dtype).float()


@given(
    st.integers(0, 1 << 30),
    st.sampled_from([0.0, 0.5, 2.0, 4.0, 10.0, 60.0]),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.sampled_from([0, VOCABULARY - 600, VOCABULARY - 30, VOCABULARY - 1]),
    st.sampled_from([0.0, 0.3, 0.9, 0.95, 0.999, 0.99999]),
    st.sampled_from([1, 2, 40, VOCABULARY]),
    st.sampled_from([-math.inf, -1e4]),
)
def test_the_scores_of_the_warper(
    seed: int, scale: float, dtype: torch.dtype, ruled_out: int, top_p: float, least: int, filtered: float
) -> None:
    warper = TopPLogitsWarper(top_p, filter_value=filtered, min_tokens_to_keep=least)
    assert agree(warper, random_scores(seed, scale, dtype, ruled_out))


def test_most_are_found_without_the_warper(monkeypatch: pytest.MonkeyPatch) -> None:
    warper, calls = TopPLogitsWarper(0.95), list[int]()
    monkeypatch.setattr(TopPLogitsWarper, "__call__", lambda self, ids, scores: calls.append(1) or scores)
    for seed in range(100):
        Nucleus(warper)(torch.zeros(1, 1), random_scores(seed, 4.0, torch.float32, 0))
    assert len(calls) < 5


@given(
    st.lists(st.tuples(st.integers(0, 1 << 30), st.sampled_from([0.0, 2.0, 4.0, 60.0])), min_size=1, max_size=5),
    st.sampled_from([0.3, 0.9, 0.99999]),
    st.booleans(),
)
def test_rows_do_not_depend_on_each_other(rows: list[tuple[int, float]], top_p: float, special: bool) -> None:
    """Some of them are left to the warper, or need more of the top scores."""
    scores = torch.cat([random_scores(seed, scale, torch.float32, 0) for seed, scale in rows])
    if special:
        scores[len(rows) // 2, 7] = math.nan
    nucleus, ids = Nucleus(TopPLogitsWarper(top_p)), torch.zeros(1, 1)
    alone = torch.cat([nucleus(ids, row[None]) for row in scores])
    assert torch.equal(nucleus(ids, scores).nan_to_num(7), alone.nan_to_num(7))
    assert agree(TopPLogitsWarper(top_p), scores)


@pytest.mark.parametrize("special", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 700, slice(None)])
def test_scores_that_are_no_numbers(special: float, place: Any) -> None:
    scores = random_scores(1, 4.0, torch.float32, 0)
    scores[0, place] = special
    assert agree(TopPLogitsWarper(0.9), scores)


def test_nothing_is_possible() -> None:
    assert agree(TopPLogitsWarper(0.9), torch.full((1, VOCABULARY), -math.inf))


@pytest.mark.parametrize("alike", [2, 3, FEW, MORE, VOCABULARY])
def test_equal_scores_on_the_border(alike: int) -> None:
    """The sort decides which of them are kept."""
    scores = torch.full((1, VOCABULARY), -30.0)
    scores[0, torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(0))[:alike]] = 3.0
    for top_p in (0.1, 0.5, 0.7, 0.9):
        assert agree(TopPLogitsWarper(top_p), scores)


@pytest.mark.parametrize("shape", [(1, MORE), (1, FEW), (1, 5), (3, FEW + 1), (0, VOCABULARY)])
def test_other_shapes(shape: tuple[int, int]) -> None:
    assert agree(TopPLogitsWarper(0.9), torch.randn(shape, generator=torch.Generator().manual_seed(0)))


def test_other_precisions() -> None:
    for dtype in (torch.float64, torch.bfloat16):
        assert agree(TopPLogitsWarper(0.9), random_scores(1, 4.0, torch.float32, 0).to(dtype))


def test_what_is_replaced() -> None:
    class Own(TopPLogitsWarper):
        """A user's."""

    temperature, own = TemperatureLogitsWarper(0.7), Own(0.9)
    given = LogitsProcessorList([temperature, TopPLogitsWarper(0.9), own])
    found = without_sort(given, torch.device("cpu"))
    assert [type(each) for each in found] == [TemperatureLogitsWarper, Nucleus, Own]
    assert [type(each) for each in given] == [TemperatureLogitsWarper, TopPLogitsWarper, Own]
    assert without_sort(given, torch.device("meta")) is given


@pytest.mark.parametrize("seed", range(3))
def test_texts_of_plain_decoding(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = lade.models.load("lade-code-8M-draft", dtype="float32")
    calls, warp = list[int](), TopPLogitsWarper.__call__

    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return warp(*arguments)

    def text(generate: Callable[..., torch.Tensor]) -> list[int]:
        calls.clear()
        torch.manual_seed(seed)
        settings = {"do_sample": True, "temperature": 0.9, "top_p": 0.9, "top_k": 0, "max_new_tokens": 40}
        found: list[int] = generate(**tokenizer(PROMPT, return_tensors="pt"), **settings)[0].tolist()
        return found

    monkeypatch.setattr(TopPLogitsWarper, "__call__", counted)
    found = text(partial(lade.generate, model, config=lade.LookaheadConfig(mode="auto", budget=8)))
    own = len(calls)
    assert found == text(model.generate)
    assert own < len(calls) / 4
