"""Expectations from a warm table: averages over all places with one ending, smoothed by what shorter endings expect."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lade.drafters import backoff as module
from lade.drafters.backoff import DOUBT, Backoff, Places, backoff, sharpened
from lade.drafters.recycle import CONTEXT, NOTHING, Context
from lade.drafters.stages import TOP
from lade.warmtable import WarmTable
from lade.warmtexts import WarmTexts, no_texts

VOCABULARY = 6
TOKENS = st.integers(0, VOCABULARY - 1)
CONTEXTS = st.tuples(*[st.integers(NOTHING, 2)] * (CONTEXT - 1), TOKENS)
SHAPES = {"seed": st.integers(0, 10_000), "rows": st.integers(0, 4), "length": st.integers(1, 12)}


def predictions(noise: np.random.Generator, *shape: int, top: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Different tokens at each place, and probabilities that fall and leave something to others."""
    tokens = noise.permuted(np.tile(np.arange(VOCABULARY), (*shape, 1)), axis=-1)[..., :top]
    probabilities = np.sort(noise.dirichlet(np.ones(top + 1), shape)[..., :top], axis=-1)[..., ::-1]
    return torch.tensor(tokens, dtype=torch.int32), torch.tensor(probabilities.copy(), dtype=torch.float32)


def table_of(seed: int, rows: int, length: int, top: int = 3) -> WarmTable:
    noise = np.random.default_rng(seed)
    written = torch.tensor(noise.integers(0, 3, (rows, length)), dtype=torch.int32)
    texts = WarmTexts(written, *predictions(noise, rows, length, top=top))
    return WarmTable(*predictions(noise, VOCABULARY, top=top), texts, 0.0)


def places_ending(texts: list[list[int]], ending: Sequence[int]) -> list[tuple[int, int]]:
    padded = [[NOTHING] * CONTEXT + text for text in texts]
    return [
        (row, at)
        for row, text in enumerate(padded)
        for at in range(len(text) - CONTEXT)
        if text[at + CONTEXT + 1 - len(ending) : at + CONTEXT + 1] == list(ending)
    ]


def by_definition(table: WarmTable, context: Context, sharpness: float) -> tuple[int, dict[int, float]]:
    def chosen(tokens: torch.Tensor, probabilities: torch.Tensor) -> dict[int, float]:
        powers = probabilities.double() ** sharpness
        scaled = powers / powers.sum() * probabilities.double().sum()
        return dict(zip(tokens.tolist(), scaled.tolist(), strict=True))

    expected, known = chosen(table.tokens[context[-1]], table.probabilities[context[-1]]), 0
    for length in range(1, CONTEXT + 1):
        places = places_ending(table.texts.written.tolist(), context[-length:])
        if not places:
            break
        said = [chosen(table.texts.tokens[place], table.texts.probabilities[place]) for place in places]
        share, known = len(places) / (len(places) + DOUBT), length
        expected = {
            token: share * sum(each.get(token, 0.0) for each in said) / len(places)
            + (1 - share) * expected.get(token, 0.0)
            for token in {token for each in [expected, *said] for token in each}
        }
    return known, expected


@given(**SHAPES, contexts=st.lists(CONTEXTS, min_size=1, max_size=8), sharpness=st.sampled_from([0.7, 1.0, 1.3]))
def test_expectations_are_those_of_the_definition(
    seed: int, rows: int, length: int, contexts: list[Context], sharpness: float
) -> None:
    table = table_of(seed, rows, length)
    drafter = Backoff(table, sharpness)
    for context in contexts:
        known, tokens, probabilities = drafter.entry(context)
        length_known, expected = by_definition(table, context, sharpness)
        assert known == length_known
        assert dict(zip(tokens, probabilities, strict=True)) == pytest.approx(expected)
        assert probabilities == sorted(probabilities, reverse=True)
        assert len(tokens) <= TOP
        assert sum(probabilities) <= 1 + 1e-6


@given(**SHAPES, context=CONTEXTS)
def test_places_are_found_by_their_last_tokens(seed: int, rows: int, length: int, context: Context) -> None:
    written = table_of(seed, rows, length).texts.written
    places = Places(written.numpy())
    assert sorted(places.order.tolist()) == list(range(rows * length))
    found = [sorted(places.order[first:end].tolist()) for first, end in places.ending(context)]
    wanted = [places_ending(written.tolist(), context[-known:]) for known in range(1, CONTEXT + 1)]
    assert found == [sorted(row * length + at for row, at in some) for some in wanted if some]


def test_without_texts_the_entry_of_the_last_token_speaks() -> None:
    table = table_of(0, 0, 1)
    known, tokens, probabilities = Backoff(WarmTable(table.tokens, table.probabilities, no_texts(3), 0.0), 1.0).entry(
        (1, 2, 0, 4)
    )
    assert (known, tokens) == (0, table.tokens[4].tolist())
    assert probabilities == pytest.approx(table.probabilities[4].tolist())


def test_a_token_outside_the_table_has_no_entry() -> None:
    assert Backoff(table_of(0, 2, 5), 1.3).entry((0, 0, 0, VOCABULARY)) == (0, [], [])


def test_no_more_tokens_are_expected_than_a_tree_weighs() -> None:
    tokens, probabilities = torch.arange(16, dtype=torch.int32)[None], torch.full((1, 16), 0.05)
    texts = WarmTexts(torch.zeros(1, 1, dtype=torch.int32), tokens[None] + 16, probabilities[None])
    _, expected, likely = Backoff(WarmTable(tokens, probabilities, texts, 0.0), 1.0).entry((NOTHING,) * 3 + (0,))
    assert len(expected) == len(likely) == TOP


def test_of_many_places_some_are_looked_at_all_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AVERAGED", 4)
    alone = predictions(np.random.default_rng(3), 1, top=3)
    places = torch.arange(10, dtype=torch.int32).view(1, 10, 1)
    texts = WarmTexts(torch.zeros(1, 10, dtype=torch.int32), places + 10, torch.full((1, 10, 1), 0.5))
    _, tokens, probabilities = Backoff(WarmTable(*alone, texts, 0.0), 1.0).entry((5, 5, 5, 0))
    found = {token: each for token, each in zip(tokens, probabilities, strict=True) if token >= 10}
    assert max(found) - min(found) >= 6
    assert list(found.values()) == pytest.approx([0.5 / 4 * 10 / (10 + DOUBT)] * 4)


@given(**SHAPES, few=st.sampled_from([0, 100]))
def test_few_places_and_many_are_summed_alike(seed: int, rows: int, length: int, few: int) -> None:
    table = table_of(seed, rows, length)
    with pytest.MonkeyPatch.context() as patch:
        usual = [Backoff(table, 1.0).entry((0, 1, 2, token)) for token in range(VOCABULARY)]
        patch.setattr(module, "FEW", few)
        others = [Backoff(table, 1.0).entry((0, 1, 2, token)) for token in range(VOCABULARY)]
    for one, other in zip(usual, others, strict=True):
        assert one[0] == other[0]
        assert dict(zip(*one[1:], strict=True)) == pytest.approx(dict(zip(*other[1:], strict=True)))


def test_what_was_worked_out_is_forgotten_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 3)
    table = table_of(5, 4, 12)
    drafter = Backoff(table, 1.0)
    contexts = [(0, 0, first, second) for first in range(3) for second in range(3)]
    once = [drafter.entry(context) for context in contexts]
    assert once == [drafter.entry(context) for context in contexts]
    assert len(drafter._known) <= 3
    assert drafter.entry.cache_info().currsize <= 3


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 1.3, 4.0, 1000.0])
def test_sharpening_moves_weight_between_tokens_and_keeps_the_sum(sharpness: float) -> None:
    (likely, less, least), none = sharpened(np.array([[0.5, 0.25, 0.125], [0.0, 0.0, 0.0]]), sharpness)
    assert likely >= less >= least >= 0
    assert likely + less + least == pytest.approx(0.875)
    assert none.tolist() == [0.0] * 3
    if sharpness < 1000:  # where every power is a number above zero
        assert likely / less == pytest.approx(2**sharpness)


def test_calls_share_what_was_worked_out() -> None:
    table = table_of(0, 2, 5)
    assert backoff(table, 1.3) is backoff(table, 1.3)
    assert backoff(table, 1.0) is not backoff(table, 1.3)
    assert backoff(table, 1 / 0.7) is backoff(table, 1.4)  # a server's temperatures are many
    assert backoff(table, 1e-3) is backoff(table, 0.1)
    one, other = (backoff(table, 1.3).entry((0, 1, 2, 0)) for _ in range(2))
    assert one is other


def test_single_precision_and_zeros_stay_numbers() -> None:
    row: Any = np.array([[1.0, 1e-38, 0.0]], dtype=np.float32)
    assert np.isfinite(sharpened(row, 1.3)).all()
