"""The loop of attention against its definition, as Python and as machine code, on one thread and on several."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from machinecode import unloaded
from rowcalls import Row, call_of, expected_of

from lade.base import threads
from lade.base.bits import DTYPES
from lade.base.compiled import trial
from lade.base.softmax import FARTHEST, exponential
from lade.target import looped, tileloops
from lade.target.fewloops import to_weights
from lade.target.looped import Looped
from lade.target.masks import RowMask
from lade.target.queryloops import TILE, Heads
from lade.target.rowloops import ATTEND
from lade.target.tileloops import MOST, score
from lade.target.ways import Call, Masked

SIZES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(1, 7)), min_size=1, max_size=3)
HEADS = st.sampled_from([(1, 1), (2, 1), (2, 3), (1, 4)])
ULP = {torch.float32: 2**-23, torch.bfloat16: 2**-8}


def attended(call: Call, several: bool) -> torch.Tensor:
    """By the loop, on as many threads as PyTorch has; on one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "OPERATIONS", 1 if several else 1 << 60)
        return Looped().attend(call)


@pytest.fixture
def two_threads() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(sizes=SIZES, heads=HEADS, size=st.integers(1, 9), seed=st.integers(0, 99))
def test_python_is_attention_to_all_keys(
    dtype: torch.dtype, sizes: list[tuple[int, int, int]], heads: tuple[int, int], size: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = [Row(*each, generator) for each in sizes]
    call = call_of(rows, *heads, generator, dtype, size)
    with unloaded():
        found = attended(call, several=False)
    torch.testing.assert_close(found.double(), expected_of(call, rows), atol=8 * ULP[dtype], rtol=8 * ULP[dtype])


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("several", [False, True], ids=["alone", "threads"])
@settings(max_examples=100)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=5),
    heads=HEADS,
    size=st.sampled_from([1, 8, 24, 64]),
    seed=st.integers(0, 99),
)
def test_machine_code_is_attention_to_all_keys(
    several: bool,
    dtype: torch.dtype,
    sizes: list[tuple[int, int, int]],
    heads: tuple[int, int],
    size: int,
    seed: int,
) -> None:
    if not ATTEND.ready:
        pytest.skip("the loop is not compiled in this run: LADE_COMPILED=1 compiles it")
    generator = torch.Generator().manual_seed(seed)
    rows = [Row(*each, generator) for each in sizes]
    call = call_of(rows, *heads, generator, dtype, size)
    assert Looped().fits(call)
    found = attended(call, several)
    torch.testing.assert_close(found.double(), expected_of(call, rows), atol=16 * ULP[dtype], rtol=16 * ULP[dtype])
    assert torch.equal(found, attended(call, not several))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("machine", [False, True], ids=["python", "machine"])
@pytest.mark.parametrize(
    ("hidden", "prefix", "nodes"), [(2, 200, 40), (90, 0, 70), (0, 0, 65), (130, 3, 2), (90, 50, 1)]
)
def test_tiles_of_keys(hidden: int, prefix: int, nodes: int, machine: bool, dtype: torch.dtype) -> None:
    """Some that all nodes see, some that nodes see in part, and some that no query of a tile sees."""
    if machine and not ATTEND.ready:
        pytest.skip("the loop is not compiled in this run: LADE_COMPILED=1 compiles it")
    generator = torch.Generator().manual_seed(0)
    rows = [Row(hidden, prefix, nodes, generator)]
    call = call_of(rows, 1, 3, generator, dtype, 5)
    with nullcontext() if machine else unloaded():
        found = attended(call, several=False)
    torch.testing.assert_close(found.double(), expected_of(call, rows), atol=16 * ULP[dtype], rtol=16 * ULP[dtype])


def test_keys_that_no_query_sees_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a chunk of a prompt, which is half of the keys."""
    scored = list[int]()

    def noted(lines: object, keys: int, *others: Any) -> None:
        scored.append(keys)
        score(lines, keys, *others)

    monkeypatch.setattr(tileloops, "score", noted)
    generator = torch.Generator().manual_seed(0)
    row = Row(0, 0, 4 * TILE, generator)
    row.mask[:] = torch.triu(torch.full_like(row.mask, -torch.inf), 1)
    row.seen = RowMask(lambda keys: row.mask, 0, 0, True, row.mask == 0)
    call = call_of([row], 1, 1, generator, torch.float32, 2)
    with unloaded():
        found = attended(call, several=False)
    torch.testing.assert_close(found.double(), expected_of(call, [row]))
    units = -(-4 * TILE // MOST)
    assert len(scored) == sum(min(MOST * (unit + 1), 4 * TILE) // -TILE * -1 for unit in range(units))


@pytest.mark.parametrize("machine", [False, True], ids=["python", "machine"])
@pytest.mark.parametrize("nodes", [2, 40])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_key_that_is_not_finite_breaks_who_sees_it(value: float, nodes: int, machine: bool) -> None:
    """Few queries and many; nodes before it do not see it."""
    if machine and not ATTEND.ready:
        pytest.skip("the loop is not compiled in this run: LADE_COMPILED=1 compiles it")
    generator = torch.Generator().manual_seed(0)
    row = Row(0, 100, nodes, generator)
    row.mask[:, 100:] = torch.triu(torch.full((nodes, nodes), -torch.inf), 1)
    row.seen = RowMask(lambda keys: row.mask, 100, 0, True, row.mask[:, 100:] == 0)
    call = call_of([row], 1, 1, generator, torch.float32, 4)
    call.key[:, :, -2], call.query[:] = value, call.query.abs()
    with nullcontext() if machine else unloaded(), np.errstate(invalid="ignore"):
        found = attended(call, several=False)[0, :, 0]
    assert found[:-2].isfinite().all()
    assert found[-2:].isnan().all()


def test_many_keys() -> None:
    """Of which a few queries' scores are all kept."""
    if not ATTEND.ready:
        pytest.skip("the loop is not compiled in this run: LADE_COMPILED=1 compiles it")
    generator = torch.Generator().manual_seed(0)
    for nodes, dtype in ((1, torch.float32), (40, torch.float32), (1, torch.bfloat16), (40, torch.bfloat16)):
        rows = [Row(2, 9000, nodes, generator)]
        call = call_of(rows, 1, 4, generator, dtype, 8)
        found = Looped().attend(call)
        torch.testing.assert_close(found.double(), expected_of(call, rows), atol=16 * ULP[dtype], rtol=16 * ULP[dtype])


@pytest.mark.parametrize("machine", [False, True], ids=["python", "machine"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_does_not_depend_on_the_number_of_nodes(dtype: torch.dtype, machine: bool) -> None:
    """Not by a bit: scores and sums of a query are those that it has in a smaller tree."""
    if machine and not ATTEND.ready:
        pytest.skip("the loop is not compiled in this run: LADE_COMPILED=1 compiles it")
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(1, 1, 70, 24, generator=generator).to(dtype) for _ in range(2))
    queries = torch.randn(24, 24, generator=generator).to(dtype)

    def found(count: int) -> torch.Tensor:
        table = looped.RowTable(np.array([0, count, 0, 70, 0, 70, 0]), np.zeros(0, np.uint8), 70, count * 70)
        given = queries[:count].reshape(-1).contiguous()
        return table.attend(given, keys.view(-1), values.view(-1), Heads(1, 1, 24, 70 * 24), 0.2).view(count, 24)

    with nullcontext() if machine else unloaded():
        whole = found(24)
        for count in (5, 8, 17):
            assert torch.equal(found(count), whole[:count])


@pytest.mark.parametrize("machine", [False, True], ids=["python", "machine"])
def test_half_precision_rounds_where_pytorch_does(machine: bool) -> None:
    """Sums are in another order, and nothing else differs: nearly all numbers have the same bits."""
    if machine and not ATTEND.ready:
        pytest.skip("the loop is not compiled in this run: LADE_COMPILED=1 compiles it")
    generator = torch.Generator().manual_seed(0)
    call = call_of([Row(0, 60, 6, generator)], 2, 2, generator, torch.bfloat16, 32)
    with nullcontext() if machine else unloaded():
        found = Looped().attend(call)
    assert (found == Masked().attend(call)).float().mean() > 0.9


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scores_that_are_not_finite_make_the_sum_nan(value: float) -> None:
    """As in softmax, so that a draft that breaks the model is seen."""
    scores = np.array([0.5, value, -1.0], np.float32)
    with np.errstate(invalid="ignore"):
        factor = to_weights(memoryview(scores), False)
    assert np.isnan(factor)


def test_hidden_keys_weigh_nothing() -> None:
    scores = np.array([0.5, -np.inf, 0.5], np.float32)
    factor = to_weights(memoryview(scores), False)
    assert (scores * factor).tolist() == [0.5, 0.0, 0.5]


@given(st.floats(-200, 0, width=32))
def test_exponentials(value: float) -> None:
    found = float(exponential(np.float32(value)))
    expected = np.exp(np.float64(value))
    assert found == (pytest.approx(expected, rel=2e-7 * max(1.0, -value)) if value > FARTHEST else 0.0)


def test_what_the_loop_does_not_take() -> None:
    generator = torch.Generator().manual_seed(0)
    fitting = call_of([Row(1, 5, 3, generator)], 2, 2, generator, torch.float32)
    query, key, value = fitting.query, fitting.key, fitting.value
    for call in (
        Call(fitting.kind, query, key, value, dropout=0.1),
        Call(fitting.kind, query, key, value, cap=1.0),
        Call(fitting.kind, query, key, value[..., :4]),
        Call(fitting.kind, query, key, value.transpose(2, 3).contiguous().transpose(2, 3)),
        Call(fitting.kind, query.double(), key.double(), value.double()),
        call_of([Row(1, 5, looped.MOST_NODES + 1, generator)], 2, 2, generator, torch.float32),
    ):
        with trial({ATTEND: ATTEND.python}):
            assert Looped().fits(fitting)
            assert not Looped().fits(call)
