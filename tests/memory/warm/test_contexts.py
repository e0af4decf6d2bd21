"""Predictions after contexts: averages over all places with one ending, smoothed by shorter endings."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lade.memory.context import CONTEXT, NOTHING
from lade.memory.warm.contexts import PRIOR_COUNT, smoothed
from lade.memory.warm.texts import WarmTexts, no_texts
from lade.memory.warmtable import WarmContexts

VOCABULARY, TOP = 6, 3
SHAPES = {"seed": st.integers(0, 10_000), "rows": st.integers(1, 4), "length": st.integers(1, 12)}
Table = tuple[torch.Tensor, torch.Tensor]


def predictions(noise: np.random.Generator, *shape: int, top: int = VOCABULARY) -> Table:
    """Different tokens at each place, and probabilities that fall and leave something to others."""
    tokens = noise.permuted(np.tile(np.arange(VOCABULARY), (*shape, 1)), axis=-1)[..., :top]
    probabilities = np.sort(noise.dirichlet(np.ones(top + 1), shape)[..., :top], axis=-1)[..., ::-1]
    return torch.tensor(tokens, dtype=torch.int32), torch.tensor(probabilities.copy(), dtype=torch.float32)


def made(seed: int, rows: int, length: int, top: int = VOCABULARY) -> tuple[WarmTexts, Table]:
    noise = np.random.default_rng(seed)
    written = torch.tensor(noise.integers(0, 3, (rows, length)), dtype=torch.int32)
    counted = torch.tensor(noise.random((rows, length)) < 0.8)
    texts = WarmTexts(written, *predictions(noise, rows, length, top=top), counted)
    return texts, predictions(noise, VOCABULARY, top=top)


def endings_of(texts: WarmTexts) -> dict[tuple[int, ...], list[tuple[int, int]]]:
    """Every ending of up to CONTEXT tokens, and the places that have it and count."""
    found: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for row, text in enumerate(texts.written.tolist()):
        for at in texts.counted[row].nonzero()[:, 0].tolist():
            for length in range(1, min(CONTEXT, at + 1) + 1):
                found.setdefault(tuple(text[at + 1 - length : at + 1]), []).append((row, at))
    return found


def rows_of(contexts: WarmContexts) -> dict[tuple[int, ...], tuple[list[int], list[float]]]:
    parts = (part.tolist() for part in (contexts.endings, contexts.tokens, contexts.probabilities))
    return {
        tuple(t for t in ending if t != NOTHING): (tokens, chances)
        for ending, tokens, chances in zip(*parts, strict=True)
    }


def by_definition(
    texts: WarmTexts, table: Table, ending: Sequence[int], known: WarmContexts | None = None
) -> dict[int, float]:
    """What is known of an ending takes the place of its shorter one."""

    def by_token(tokens: torch.Tensor, probabilities: torch.Tensor) -> dict[int, float]:
        return dict(zip(tokens.tolist(), probabilities.tolist(), strict=True))

    before = {} if known is None else rows_of(known)
    expected = by_token(table[0][ending[-1]], table[1][ending[-1]])
    for length in range(1, len(ending) + 1):
        places = endings_of(texts)[tuple(ending[-length:])]
        if tuple(ending[-length:]) in before:
            expected = dict(zip(*before[tuple(ending[-length:])], strict=True))
        predicted = [by_token(texts.tokens[place], texts.probabilities[place]) for place in places]
        share = len(places) / (len(places) + PRIOR_COUNT)
        expected = {
            token: share * sum(each.get(token, 0.0) for each in predicted) / len(places)
            + (1 - share) * expected.get(token, 0.0)
            for token in range(VOCABULARY)
        }
    return expected


@given(**SHAPES)
def test_predictions_are_those_of_the_definition(seed: int, rows: int, length: int) -> None:
    """Where all tokens are kept, so that none is lost on the way to longer endings."""
    texts, table = made(seed, rows, length)
    found = rows_of(contexts := smoothed(texts, *table))
    assert len(found) == len(contexts.endings)
    assert set(found) == set(endings_of(texts))
    for ending, (tokens, chances) in found.items():
        assert dict(zip(tokens, chances, strict=True)) == pytest.approx(by_definition(texts, table, ending), abs=1e-6)


@given(**SHAPES)
def test_known_contexts_smooth_those_of_the_same_ending_and_others_stay(seed: int, rows: int, length: int) -> None:
    texts, table = made(seed, rows, length)
    known = smoothed(made(seed + 1, rows, length)[0], *table)
    before, found = rows_of(known), rows_of(contexts := smoothed(texts, *table, known))
    assert len(found) == len(contexts.endings)
    assert set(found) == set(endings_of(texts)) | set(before)
    for ending, (tokens, chances) in found.items():
        if ending not in endings_of(texts):
            assert (tokens, chances) == before[ending]
            continue
        expected = by_definition(texts, table, ending, known)
        assert dict(zip(tokens, chances, strict=True)) == pytest.approx(expected, abs=1e-6)


@given(**SHAPES)
def test_a_text_padded_on_the_left_begins_later(seed: int, rows: int, length: int) -> None:
    """No ending reaches into the padding."""
    texts, table = made(seed, rows, length)
    columns = (torch.full((rows, 2), NOTHING, dtype=torch.int32), *predictions(np.random.default_rng(0), rows, 2))
    padding = (*columns, torch.zeros(rows, 2, dtype=torch.bool))
    parts = zip(padding, (texts.written, texts.tokens, texts.probabilities, texts.counted), strict=True)
    padded = smoothed(WarmTexts(*(torch.cat(part, dim=1) for part in parts)), *table)
    assert rows_of(padded) == rows_of(smoothed(texts, *table))


@given(**SHAPES)
def test_the_likeliest_stand_first_and_no_more_than_asked_for(seed: int, rows: int, length: int) -> None:
    texts, table = made(seed, rows, length, TOP)
    contexts = smoothed(texts, *table)
    assert contexts.tokens.shape == contexts.probabilities.shape == (len(contexts.endings), TOP)
    assert (contexts.probabilities.diff(dim=1) <= 0).all()
    assert (contexts.probabilities >= 0).all()
    assert (contexts.probabilities.sum(1) <= 1 + 1e-6).all()
    assert all(len({*row}) == TOP for row in contexts.tokens.tolist())
    assert contexts.endings.dtype == contexts.tokens.dtype == torch.int32
    assert contexts.probabilities.dtype == torch.float32


@pytest.mark.parametrize("nan", [math.nan, -math.nan])
@given(**SHAPES)
def test_predictions_that_are_not_numbers_count_nothing(nan: float, seed: int, rows: int, length: int) -> None:
    """As a broken model may have after some token."""
    texts, table = made(seed, rows, length)
    broken = texts.written == 1
    texts.probabilities[broken] = nan
    found = smoothed(texts, *table)
    texts.probabilities[broken] = 0.0
    expected = smoothed(texts, *table)
    assert torch.equal(found.endings, expected.endings)
    assert torch.equal(found.tokens, expected.tokens)
    assert torch.equal(found.probabilities, expected.probabilities)


def test_without_texts_there_are_no_contexts() -> None:
    contexts = smoothed(no_texts(TOP), *made(0, 1, 1, TOP)[1])
    assert contexts.endings.shape == (0, CONTEXT)
    assert contexts.tokens.shape == contexts.probabilities.shape == (0, TOP)


def test_large_tokens_stay_apart() -> None:
    """Ids near the end of a large vocabulary."""
    size = 300_000
    written = torch.full((1, 2), size - 1, dtype=torch.int32)
    said = torch.tensor([[[size - 1, size - 2], [size - 3, 0]]], dtype=torch.int32)
    likely = torch.tensor([[0.5, 0.25]]).expand(1, 2, 2).contiguous()
    table = torch.zeros(size, 2, dtype=torch.int32), torch.zeros(size, 2)
    found = rows_of(smoothed(WarmTexts(written, said, likely, torch.ones(1, 2, dtype=torch.bool)), *table))
    assert found[size - 1,][0] == [size - 3, size - 1] or found[size - 1,][0] == [size - 1, size - 3]
    assert found[size - 1, size - 1][0][0] == size - 3
