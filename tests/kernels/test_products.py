"""Products of few tokens, in Triton's interpreter, beside PyTorch's own."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn.functional import silu

from lade.kernels import products
from lade.kernels.between import HALVES
from lade.kernels.sizes import GATED, MOST, OF_FEW, OF_MANY, Sizes

interpreted = pytest.importorskip("interpreted", reason="needs triton", exc_type=ImportError)
if not interpreted.chosen():
    pytest.skip("needs Triton's interpreter: no CUDA device", allow_module_level=True)

SMALL = Sizes(16, 32, 2), Sizes(16, 32, 2, swap=True), Sizes(16, 32, 2, split=2), Sizes(16, 32, 2, swap=True, split=3)
EDGE = 0.02  # share of numbers whose sum, in another order, may be rounded otherwise


@pytest.fixture(autouse=True, scope="module")
def _fast():
    interpreted.hasten()


def close(found, expected):
    """Equal, but for numbers that are rounded to a neighbour."""
    assert found.dtype is expected.dtype
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=4 * torch.finfo(found.dtype).eps, atol=1e-2)
    assert (found != expected).float().mean() <= EDGE + 2 / found.numel()


def product(states, weight, bias=None):
    """In float32, rounded once."""
    found = states.float() @ weight.float().T
    return (found if bias is None else found + bias.float()).to(states.dtype)


def drawn(dtype, *shape):
    return torch.randn(shape).to(dtype)


@settings(max_examples=20, deadline=None)
@example(dtype=torch.bfloat16, tokens=3, lines=[20, 33, 16], blocks=6, sizes=SMALL[3], biased=True, added=True, seed=0)
@given(
    dtype=st.sampled_from(HALVES), tokens=st.integers(1, 20),
    lines=st.lists(st.integers(1, 40), min_size=1, max_size=3), blocks=st.integers(1, 8),
    sizes=st.sampled_from(SMALL), biased=st.booleans(), added=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_products_with_up_to_three_weights(dtype, tokens, lines, blocks, sizes, biased, added, seed):
    torch.manual_seed(seed)
    size = 16 * blocks
    states, weights = drawn(dtype, 1, tokens, size), [drawn(dtype, count, size) for count in lines]
    biases = [drawn(dtype, count) if biased else None for count in lines]
    residual = drawn(dtype, 1, tokens, sum(lines)) if added else None
    assert products.fit(states, *weights)
    expected = torch.cat([product(states, *each) for each in zip(weights, biases, strict=True)], dim=-1)
    found = products.linear(states, weights, biases, residual, sizes)
    close(found, expected if residual is None else residual + expected)
    if sizes.split > 1:
        assert not products._counters(states.device).any(), "the next launch would take its first part for the last"


@settings(max_examples=12, deadline=None)
@given(
    dtype=st.sampled_from(HALVES), tokens=st.integers(1, 20), lines=st.integers(1, 40), blocks=st.integers(1, 8),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_pairs_of_lines(dtype, tokens, lines, blocks, seed):
    torch.manual_seed(seed)
    states = drawn(dtype, 1, tokens, 16 * blocks)
    gates, values = drawn(dtype, 2, lines, 16 * blocks)
    close(
        products.gated(states, gates, values, Sizes(16, 32, 2)), silu(product(states, gates)) * product(states, values)
    )


@pytest.mark.parametrize("tokens", [1, 16, 17, MOST])
def test_the_sizes_that_are_chosen(tokens):
    """With lines and numbers that no block divides."""
    torch.manual_seed(tokens)
    states, weight = drawn(torch.bfloat16, tokens, 592), drawn(torch.bfloat16, 70, 592) / 16
    close(products.linear(states, [weight], [None]), product(states, weight))
    close(
        products.gated(states, weight, weight.flip(0)), silu(product(states, weight)) * product(states, weight.flip(0))
    )
    for sizes in (*OF_FEW, Sizes(64, 128, 4, swap=True, split=4)) if tokens <= 16 else OF_MANY:
        close(products.linear(states, [weight], [None], sizes=sizes), product(states, weight))
    for sizes in GATED:
        close(products.gated(states, weight, weight, sizes), silu(product(states, weight)) * product(states, weight))


def test_a_token_has_the_same_product_whatever_stands_beside_it():
    torch.manual_seed(0)
    states, weight = drawn(torch.bfloat16, 16, 64), drawn(torch.bfloat16, 40, 64)
    together = products.linear(states, [weight], [None])
    alone = [products.linear(states[token : token + 1], [weight], [None]) for token in range(16)]
    assert torch.equal(torch.cat(alone), together)


def test_what_does_not_fit():
    half = torch.ones(2, 32, dtype=torch.float16)
    weight = torch.ones(5, 32, dtype=torch.float16)
    assert products.fit(half, weight, weight[1:])
    assert products.fit(half[:1, None], weight)
    assert not products.fit(half.float(), weight.float()), "float32 is judged by identity"
    assert not products.fit(half, weight.bfloat16())
    assert not products.fit(half.new_ones(MOST + 1, 32), weight)
    assert not products.fit(half[:0], weight)
    assert not products.fit(half[:, :24].contiguous(), weight[:, :24].contiguous()), "K is no multiple of 16"
    assert not products.fit(half[:, :16], weight[:, :16].contiguous()), "states are not side by side"
    assert not products.fit(half[:, :16].contiguous(), weight[:, :16]), "lines are not side by side"
    assert not products.fit(half, *[weight] * 4), "a launch takes three weights"
    storage = torch.ones(6 * 32, dtype=torch.float16)
    assert not products.fit(half, weight, storage[1 : 1 + 5 * 32].view(5, 32)), "16 numbers apart, or a multiple"
