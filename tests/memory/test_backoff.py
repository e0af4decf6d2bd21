"""Lookups in a warm table: the longest known suffix of the context is used, at the sharpness of the call."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lade.base.compiled import viewed
from lade.memory.backoff import COLUMNS, TOKENS, Backoff, backoff, find_warm, hashes, sharpened
from lade.memory.context import CONTEXT, NOTHING
from lade.memory.hashing import hashed
from lade.memory.predictions import TOP
from lade.memory.warmtable import WarmContexts, WarmTable

pytestmark = pytest.mark.usefixtures("as_python")

VOCABULARY, KEPT = 6, 16
ENDINGS = ([NOTHING, NOTHING, NOTHING, 1], [NOTHING, NOTHING, 2, 1], [0, 3, 2, 1])


def table_of() -> WarmTable:
    """Entry t predicts from 100 t on, ending e from 1000 + 100 e on."""

    def said(first: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = first + 100 * torch.arange(rows, dtype=torch.int32)[:, None] + torch.arange(KEPT, dtype=torch.int32)
        return tokens, (0.5 ** torch.arange(1, KEPT + 1)).expand(rows, -1).contiguous()

    endings = torch.tensor(ENDINGS, dtype=torch.int32)
    return WarmTable(*said(0, VOCABULARY), WarmContexts(endings, *said(1000, len(ENDINGS))), 0.0)


def entry(warm: Backoff, context: Any) -> tuple[int, list[int], list[float]]:
    """What is known after a context: how many tokens of it count, tokens, their probabilities."""
    row, length = find_warm(*viewed(warm), *context)
    columns = int(warm.ints[COLUMNS])
    here = slice(row * columns, (row + 1) * columns if row >= 0 else row * columns)
    return length, warm.ints[warm.ints[TOKENS] :][here].tolist(), warm.masses[here].tolist()


@pytest.mark.parametrize(
    ("context", "length", "first"),
    [
        ((0, 3, 2, 1), 4, 1200),
        ((5, 3, 2, 1), 2, 1100),  # no ending of three tokens is known
        ((0, 3, 5, 1), 1, 1000),
        ((NOTHING, NOTHING, NOTHING, 1), 1, 1000),
        ((0, 3, 2, 4), 0, 400),
        ((NOTHING, NOTHING, NOTHING, 0), 0, 0),
    ],
)
def test_the_longest_known_suffix_is_used(context: Any, length: int, first: int) -> None:
    known, tokens, probabilities = entry(backoff(table_of(), 1.0), context)
    assert known == length
    assert tokens == list(range(first, first + TOP))  # as many as a tree weighs
    assert probabilities == pytest.approx([0.5 ** (rank + 1) for rank in range(TOP)])


@pytest.mark.parametrize("token", [VOCABULARY, NOTHING])
def test_a_token_outside_the_table_has_no_entry(token: int) -> None:
    assert entry(backoff(table_of(), 1.3), (0, 0, 0, token)) == (0, [], [])


@pytest.mark.parametrize("context", [(0, 3, 2, 1), (0, 0, 0, 5)])
def test_entries_are_as_sharp_as_asked_for(context: Any) -> None:
    (_, _, flat), (_, _, sharp) = (entry(backoff(table_of(), sharpness), context) for sharpness in (1.0, 2.0))
    assert sharp[0] / sharp[1] == pytest.approx((flat[0] / flat[1]) ** 2)
    assert sum(sharp) == pytest.approx(sum(flat))


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 1.3, 4.0, 1000.0])
def test_sharpening_moves_weight_between_tokens_and_keeps_the_sum(sharpness: float) -> None:
    (likely, less, least), none = sharpened(np.array([[0.5, 0.25, 0.125], [0.0, 0.0, 0.0]]), sharpness)
    assert likely >= less >= least >= 0
    assert likely + less + least == pytest.approx(0.875)
    assert none.tolist() == [0.0] * 3
    if sharpness < 1000:  # where every power is a number above zero
        assert likely / less == pytest.approx(2**sharpness)


@given(st.data(), st.integers(0, 40))
def test_endings_against_a_dict(data: st.DataObject, number: int) -> None:
    """Of tokens beyond the vocabulary too, and whatever buckets they share."""
    token = st.integers(0, 3) | st.integers(0, 1 << 20)
    endings = st.integers(1, CONTEXT).flatmap(lambda length: st.tuples(*[token] * length))
    known = data.draw(st.lists(endings, max_size=number, unique=True))
    padded = [[NOTHING] * (CONTEXT - len(ending)) + [*ending] for ending in known]
    said = torch.arange(len(known), dtype=torch.int32)[:, None], torch.ones(len(known), 1)
    keys = torch.tensor(padded, dtype=torch.int32).reshape(-1, CONTEXT)
    empty = torch.zeros(0, 1, dtype=torch.int32), torch.zeros(0, 1)
    warm = backoff(WarmTable(*empty, WarmContexts(keys, *said), 0.0), 1.0)
    for asked in [*known, data.draw(st.tuples(*[token] * CONTEXT))]:
        context = [*[0] * CONTEXT, *asked][-CONTEXT:]
        length = next((each for each in range(CONTEXT, 0, -1) if tuple(context[-each:]) in known), 0)
        expected = [known.index(tuple(context[-length:]))] if length else []
        assert entry(warm, context)[:2] == (length, expected)


@given(st.tuples(*[st.integers(-2, (1 << 31) - 1)] * CONTEXT))
def test_hashes_of_many_are_those_of_one(context: tuple[int, ...]) -> None:
    assert hashes(np.array([context], np.int32)).tolist() == [hashed(*context)]


def test_calls_share_what_was_worked_out() -> None:
    table = table_of()
    assert backoff(table, 1.3) is backoff(table, 1.3)
    assert backoff(table, 1.0) is not backoff(table, 1.3)
    assert backoff(table, 1 / 0.7) is backoff(table, 1.4)  # a server's temperatures are many
    assert backoff(table, 1e-3) is backoff(table, 0.1)


def test_single_precision_and_zeros_stay_numbers() -> None:
    row: Any = np.array([[1.0, 1e-38, 0.0]], dtype=np.float32)
    assert np.isfinite(sharpened(row, 1.3)).all()
