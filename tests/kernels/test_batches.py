"""Padded batches: what the kernel takes, and what it computes."""

import pytest
import torch

from lade.kernels.batches import causal, fits
from lade.kernels.rows import Rules
from lade.target.definition import dense

interpreted = pytest.importorskip("interpreted", reason="needs triton", exc_type=ImportError)


def states(batch=2, tokens=5, keys=9):
    """4 heads of queries for 2 of keys and values, as models pass them: tokens behind one another."""
    torch.manual_seed(0)
    return [torch.randn(batch, length, heads, 16).transpose(1, 2) for length, heads in ((tokens, 4), *[(keys, 2)] * 2)]


@pytest.mark.skipif(not interpreted.chosen(), reason="needs Triton's interpreter: no CUDA device")
@pytest.mark.parametrize("layout", [torch.Tensor.contiguous, torch.clone], ids=["heads first", "tokens first"])
def test_each_row_attends_to_its_own_keys(layout):
    interpreted.hasten()
    query, key, value = (layout(each) for each in states())
    assert fits(query, key, value)
    mask = torch.ones(5, 9, dtype=torch.bool).tril(4)
    expected = dense(query, key, value, mask[None, None], Rules(0.25))
    torch.testing.assert_close(causal(query, key, value, Rules(0.25)), expected, rtol=0, atol=2e-6)


def test_rows_of_unequal_places_are_left_to_others():
    query, key, value = states()
    assert not fits(query, key, value[:, :, ::2])
    assert not fits(query.double(), key.double(), value.double())
    assert fits(query[:1], key[:1], value[:1, :, ::2])
