"""Products of few tokens with weights in blocks, as Python and as machine code, against those in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from bitnumbers import tensor_of
from hypothesis import given, settings
from hypothesis import strategies as st
from machinecode import both_ways

from lade.base.bits import DTYPES, bits_of
from lade.base.threads import FORK, counters
from lade.weights.blockloops import MULTIPLY_BLOCKS, multiplied_by_blocks, room_for
from lade.weights.blocks import LINES

NUMBERS = st.sampled_from([1, 3, LINES - 1, LINES, LINES + 6, 3 * LINES])
TOLERANCES = {torch.bfloat16: 2.0**-8, torch.float32: 1e-5}  # for a number; half a step of bfloat16
OF_STATES = pytest.mark.parametrize("dtype", DTYPES)


machine = both_ways(MULTIPLY_BLOCKS)


def blocks_with(weight: torch.Tensor, padding: int) -> np.ndarray:
    """The memory of a [N, K] weight, with numbers at the end of lines that no product may read."""
    lines, size = weight.shape
    whole = torch.full((-(-lines // LINES) * LINES, size + padding), torch.nan, dtype=torch.bfloat16)
    whole[:lines, :size] = weight
    found: np.ndarray = bits_of(whole.view(-1, LINES, (size + padding) // 2, 2).transpose(1, 2).contiguous())
    return found


def products(
    states: torch.Tensor, weight: torch.Tensor, threads: int, bias: torch.Tensor | None = None, padding: int = 0
) -> torch.Tensor:
    """[T, N] of [T, K] and [N, K], as of the states; every number of them is computed."""
    tokens, lines = len(states), len(weight)
    bits, room = bits_of(states.new_full((tokens, lines), torch.nan)), room_for(states.numel(), tokens, threads)
    room[:] = np.nan
    added, blocks = bits_of(states.new_empty(0) if bias is None else bias), blocks_with(weight, padding)
    short = states.dtype is torch.bfloat16
    MULTIPLY_BLOCKS(FORK, threads, counters(), bits_of(states), tokens, blocks, added, short, room, bits)
    return tensor_of(bits).view(tokens, lines)


def noise(seed: int, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@OF_STATES
@pytest.mark.usefixtures("machine")
@settings(max_examples=12)
@given(
    tokens=st.integers(1, 21),
    lines=NUMBERS,
    half=st.integers(1, 25),
    threads=st.integers(1, 3),
    padding=st.sampled_from([0, 2, 32]),
    seed=st.integers(0, 99),
)
def test_products(
    dtype: torch.dtype, tokens: int, lines: int, half: int, threads: int, padding: int, seed: int
) -> None:
    """Of float32 states they are rounded nowhere; what no bfloat16 holds of states and bias counts."""
    states, bias = noise(seed, tokens, 2 * half, dtype=dtype), noise(seed + 2, lines, dtype=dtype)
    weight = noise(seed + 1, lines, 2 * half)
    expected = states.double() @ weight.double().T
    for own in (None, bias):
        found = products(states, weight, threads, own, padding)
        assert found.dtype is dtype
        wanted = expected if own is None else expected + own.double()
        torch.testing.assert_close(found.double(), wanted, rtol=TOLERANCES[dtype], atol=1e-5)


@OF_STATES
@pytest.mark.usefixtures("machine")
@settings(max_examples=8)
@given(tokens=st.integers(2, 21), seed=st.integers(0, 99))
def test_a_product_does_not_depend_on_other_tokens(dtype: torch.dtype, tokens: int, seed: int) -> None:
    """Not by a bit, so that a tree and a single token get the same."""
    states, weight = noise(seed, tokens, 50, dtype=dtype), noise(seed + 1, LINES, 50)
    together = products(states, weight, 1)
    alone = torch.cat([products(state[None], weight, 1) for state in states])
    assert torch.equal(together, alone)


@OF_STATES
@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("special", [torch.nan, torch.inf])
def test_numbers_that_are_not_finite(dtype: torch.dtype, special: float) -> None:
    """They stay where they belong: in the products of their state."""
    states, weight = torch.ones(3, 8).to(dtype), torch.ones(LINES + 1, 8).bfloat16()
    states[1, 4] = special
    found = products(states, weight, 1)
    assert torch.equal(found[[0, 2]], torch.full((2, LINES + 1), 8.0).to(dtype))
    assert torch.equal(found[1].nan_to_num(7), torch.full((LINES + 1,), special).to(dtype).nan_to_num(7))


@OF_STATES
@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("special", [torch.nan, torch.inf])
def test_weights_that_are_not_finite(dtype: torch.dtype, special: float) -> None:
    """They stay in the products of their line."""
    states, weight = torch.ones(3, 8).to(dtype), torch.ones(LINES + 1, 8).bfloat16()
    weight[LINES, 4] = special
    found = products(states, weight, 1)
    assert torch.equal(found[:, :LINES], torch.full((3, LINES), 8.0).to(dtype))
    assert torch.equal(found[:, LINES].nan_to_num(7), torch.full((3,), special).to(dtype).nan_to_num(7))


@OF_STATES
@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(), (1,), (1, 5), (2, 3, 4)])
def test_states_of_several_dimensions(dtype: torch.dtype, shape: tuple[int, ...], bias: bool) -> None:
    """The products have them, too."""
    states, weight = noise(0, *shape, 6, dtype=dtype), noise(1, LINES + 3, 6)
    added = noise(2, LINES + 3, dtype=dtype).requires_grad_() if bias else None
    found = multiplied_by_blocks(states, blocks_with(weight, 0), len(weight), added)
    expected = states.double() @ weight.double().T + (added.detach().double() if added is not None else 0)
    assert found.dtype is dtype
    torch.testing.assert_close(found.double(), expected, rtol=TOLERANCES[dtype], atol=1e-5)
