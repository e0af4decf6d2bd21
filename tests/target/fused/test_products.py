"""Products of few tokens, as Python and as machine code, against products in double precision."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from machinecode import both_ways

from lade.base.threads import FORK, counters
from lade.target.fused.products import MULTIPLY, UNIT, multiply_unit, units_of

LINES = st.sampled_from([1, 3, 4, 5, UNIT - 1, UNIT, UNIT + 6, 3 * UNIT])


machine = both_ways(MULTIPLY)


def products(states: torch.Tensor, weight: torch.Tensor, threads: int) -> torch.Tensor:
    """[T, N] of [T, K] and [N, K]."""
    found = torch.full((len(states), len(weight)), torch.nan)
    numbers, lines = (each.numpy().reshape(-1) for each in (states, weight))
    MULTIPLY(FORK, threads, counters(), numbers, len(states), lines, found.numpy().reshape(-1))
    return found


@pytest.mark.usefixtures("machine")
@settings(max_examples=12)
@given(st.integers(1, 9), LINES, st.integers(1, 50), st.integers(1, 3), st.integers(0, 99))
def test_products(tokens: int, lines: int, size: int, threads: int, seed: int) -> None:
    noise = torch.Generator().manual_seed(seed)
    states, weight = torch.randn(tokens, size, generator=noise), torch.randn(lines, size, generator=noise)
    found = products(states, weight, threads)
    expected = states.double() @ weight.double().T
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("special", [torch.nan, torch.inf])
def test_numbers_that_are_not_finite(special: float) -> None:
    """They stay where they belong: in the products of their state."""
    states, weight = torch.ones(3, 9), torch.ones(UNIT + 1, 9)
    states[1, 4] = special
    found = products(states, weight, 1)
    assert torch.equal(found[[0, 2]], torch.full((2, UNIT + 1), 9.0))
    assert torch.equal(found[1].nan_to_num(7), torch.full((UNIT + 1,), special).nan_to_num(7))


def test_bias() -> None:
    """As Python; whole layers show it as machine code."""
    states, weight, bias = (torch.randn(shape) for shape in ((2, 5), (UNIT + 6, 5), (UNIT + 6,)))
    found = torch.full((2, UNIT + 6), torch.nan)
    numbers = [memoryview(each.numpy().reshape(-1)) for each in (states, weight, bias, found)]  # type: ignore[arg-type]
    for unit in range(units_of(len(weight))):
        multiply_unit(numbers[0], 2, *numbers[1:], unit)
    torch.testing.assert_close(found, torch.nn.functional.linear(states, weight, bias))
