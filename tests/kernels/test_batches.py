"""Padded batches: what the kernel takes, and the definition in plain torch."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from lade.kernels.batches import causal, dense, fits
from lade.kernels.rows import Rules

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
    expected = dense(query, key, value, mask, Rules(0.25))
    torch.testing.assert_close(causal(query, key, value, Rules(0.25)), expected, rtol=0, atol=2e-6)


def test_the_definition_is_pytorchs():
    query, key, value = states()
    mask = torch.ones(5, 9, dtype=torch.bool).tril(4)
    added = torch.zeros(5, 9).masked_fill(~mask, -torch.inf)
    expected = scaled_dot_product_attention(query, key, value, mask, scale=0.25, enable_gqa=True).transpose(1, 2)
    for each in (mask, added):
        torch.testing.assert_close(dense(query, key, value, each, Rules(0.25)), expected)


def test_rows_of_unequal_places_are_left_to_others():
    query, key, value = states()
    assert not fits(query, key, value[:, :, ::2])
    assert not fits(query.double(), key.double(), value.double())
    assert fits(query[:1], key[:1], value[:1, :, ::2])
