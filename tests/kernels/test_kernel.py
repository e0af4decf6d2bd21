"""The kernels in Triton's interpreter against float64: unequal rows, every rule, every way to divide the work."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from treerows import chain_row, random_case, tree_row

from lade.kernels.blocks import Blocks
from lade.kernels.rows import Rows, Rules

interpreted = pytest.importorskip("interpreted", reason="needs triton", exc_type=ImportError)
if not interpreted.chosen():
    pytest.skip("needs Triton's interpreter: no CUDA device", allow_module_level=True)

from lade.kernels.launch import attend  # noqa: E402

SMALL = Blocks(16, 16, 4, 2)
ALLOWED = {torch.float32: 4e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # of states that are seldom beyond 4


@pytest.fixture(autouse=True, scope="module")
def _fast():
    interpreted.hasten()


@settings(max_examples=4)
@given(drawn=st.randoms(use_true_random=False), parts=st.sampled_from([1, 3]))
def test_unequal_trees_in_float32(drawn, parts):
    case = random_case(drawn, torch.float32, keys=40, nodes=12)
    found = attend(case.query, case.key, case.value, case.rows, case.rules, parts=parts)
    assert case.error(found) < ALLOWED[torch.float32]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types_are_rounded_once(dtype):
    case = random_case(random.Random(3), dtype, keys=40, nodes=12)
    found = attend(case.query, case.key, case.value, case.rows, case.rules, parts=2)
    assert found.dtype is dtype
    assert case.error(found) < ALLOWED[dtype]


@pytest.mark.slow
@pytest.mark.real
@settings(max_examples=120)
@given(drawn=st.randoms(use_true_random=False), parts=st.sampled_from([None, 1, 2, 5]), data=st.data())
def test_many_trees(drawn, parts, data):
    dtype = data.draw(st.sampled_from(list(ALLOWED)))
    case = random_case(drawn, dtype, most=3, keys=200, nodes=data.draw(st.sampled_from([24, 150])))
    sizes = data.draw(st.sampled_from([None, SMALL]))
    found = attend(case.query, case.key, case.value, case.rows, case.rules, parts=parts, sizes=sizes)
    assert case.error(found) < ALLOWED[dtype]


def one_row(row, integers, dtype=torch.float32):
    """A launch of one row: 2 query heads of one head of keys."""
    torch.manual_seed(0)
    rows = Rows.of([row], integers, torch.device("cpu"))
    states = [torch.randn(heads, length, 16, dtype=dtype) for heads, length in ((2, row.nodes), *[(1, 99)] * 2)]
    return (*states, rows)


def test_what_a_row_does_not_see_does_not_matter():
    """Neither other rows' keys nor padding, siblings, or NaN in memory that nothing was written to."""
    integers = []
    row = tree_row(random.Random(1), 0, 7, (9, 5, 5), integers)
    query, key, value, rows = one_row(row, integers)
    before = attend(query, key, value, rows, Rules(0.25))
    for states in (key, value):
        states[:, :7], states[:, 7 + 9 + 5 :] = torch.nan, torch.nan
    assert torch.equal(attend(query, key, value, rows, Rules(0.25)), before)


def test_one_launch_reads_lengths_from_the_device():
    """As a captured graph does: the table changes, the launch does not."""
    row = chain_row(random.Random(0), 0, 0, (30, 4, 4))
    query, key, value, rows = one_row(row, [0])
    for held in (30, 3, 0, 17):
        rows.table[0, 3] = held
        shorter = Rows(rows.table[:1].clone(), rows.integers, 4, held + 4)
        expected = attend(query, key, value, shorter, Rules(0.25), parts=1)
        torch.testing.assert_close(attend(query, key, value, rows, Rules(0.25), parts=2), expected)


def test_parts_without_keys_are_not_looked_at():
    """Nothing is stored for them, so that there may be NaN."""
    query, key, value, rows = one_row(chain_row(random.Random(0), 0, 0, (30, 4, 4)), [0])
    expected = attend(query, key, value, rows, Rules(0.25), parts=1)
    torch.use_deterministic_algorithms(True)  # which fills new memory with NaN
    try:
        found = attend(query, key, value, rows, Rules(0.25), parts=9)
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(found, expected)


def test_states_may_be_views():
    """Heads behind tokens or tokens behind heads, with anything between."""
    row = chain_row(random.Random(0), 0, 0, (20, 4, 4))
    query, key, value, rows = one_row(row, [0])
    expected = attend(query, key, value, rows, Rules(0.25))
    views = [states.transpose(0, 1).contiguous().transpose(0, 1) for states in (query, key, value)]
    assert torch.equal(attend(*views, rows, Rules(0.25)), expected)
    strided = torch.stack([value, value], -1)[..., 0]
    assert torch.equal(attend(query, key, strided, rows, Rules(0.25)), expected)
