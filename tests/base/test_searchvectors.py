"""Searching numbers in the vector registers of any machine, and as Python."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from vectorkinds import DTYPES, KINDS, stored

numba = pytest.importorskip("numba")

from lade.base import searching, searchvectors  # noqa: E402

LANES, FEW = 16, 8
BITS = "bits", "short"
Call = Callable[..., Any]


def compiled_for(kind: tuple[int, int]) -> tuple[Call, ...]:
    """The machine code for vectors of a kind: of groups, and of comparisons with a bound and with a value."""
    largest_of_groups, at_least = searchvectors.largest_of_groups, searchvectors.at_least
    equal_to, lowest_bit = searchvectors.equal_to, searchvectors.lowest_bit

    def largest(numbers: Any, number: int, depth: int, out: Any) -> Any:
        return largest_of_groups(numbers, number, depth, out)

    def places(numbers: Any, place: int, least: Any) -> Any:
        bits = at_least(numbers, place, least, LANES)
        return bits, lowest_bit(bits) if bits else -1

    def equals(numbers: Any, place: int, value: int) -> Any:
        return equal_to(numbers, place, value, FEW)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searchvectors, "vectors", lambda: kind)
        found = numba.njit(largest), numba.njit(places), numba.njit(equals)
        for dtype in BITS:
            found[0](np.zeros(4, DTYPES[dtype]), 2, 2, np.zeros(2, np.float32))
    return found


def as_python() -> tuple[Call, ...]:
    def largest(numbers: Any, number: int, depth: int, out: Any) -> bool:
        return searching.largest_of_groups(memoryview(numbers), number, depth, memoryview(out))

    def places(numbers: Any, place: int, least: Any) -> tuple[int, int]:
        bits = searching.at_least(memoryview(numbers), place, least, LANES)
        return bits, searching.lowest_bit(bits) if bits else -1

    def equals(numbers: Any, place: int, value: int) -> int:
        return searching.equal_to(memoryview(numbers), place, value, FEW)

    return largest, places, equals


@pytest.fixture(scope="module", params=[None, *KINDS.values()], ids=["python", *KINDS])
def loops(request: pytest.FixtureRequest) -> tuple[Call, ...]:
    return as_python() if request.param is None else compiled_for(request.param)


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("depth", [2, 8])
@pytest.mark.parametrize("number", [0, 1, 15, 64, 151])
def test_the_largest_of_groups(loops: tuple[Call, ...], number: int, depth: int, dtype: str) -> None:
    given = np.random.default_rng(number).standard_normal((depth, number))
    given[:, number // 2 :: 7] = -np.inf
    bits, numbers = stored(given, dtype)
    out = np.full(number + 1, 9, np.float32)
    assert not loops[0](np.concatenate([bits, stored(np.array([np.nan]), dtype)[0]]), number, depth, out)
    assert out.tolist() == [*numbers.max(0).tolist(), 9]


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("sign", [1, -1])
def test_nan_is_found_wherever_it_is(loops: tuple[Call, ...], sign: int, dtype: str) -> None:
    """In any vector and in what is left beside these; other groups have their largest."""
    for place in range(4 * 87):
        given = np.ones((4, 87))
        given.ravel()[place] = np.copysign(np.nan, sign)
        out = np.zeros(87, np.float32)
        assert loops[0](stored(given, dtype)[0], 87, 4, out)
        assert np.delete(out, place % 87).tolist() == [1] * 86


def test_which_numbers_are_equal(loops: tuple[Call, ...]) -> None:
    numbers = np.array([-1, 5, 3, 5, -1, 2**31 - 1, 5, 0, 7, 5], np.int32)
    for value in (5, -1, 2**31 - 1, 4):
        expected = sum(1 << place for place, each in enumerate(numbers[1 : 1 + FEW]) if each == value)
        assert loops[2](numbers, 1, value) == expected


def test_which_numbers_are_large(loops: tuple[Call, ...]) -> None:
    numbers = np.random.default_rng(0).standard_normal(40).astype(np.float32)
    numbers[8], numbers[9], numbers[10] = np.nan, np.inf, -np.inf
    for least in (-np.inf, numbers[5], np.float32(9), np.float32(np.inf)):
        large = numbers[5 : 5 + LANES] >= least
        expected = sum(1 << place for place, each in enumerate(large.tolist()) if each)
        first = int(large.argmax()) if large.any() else -1
        assert loops[1](numbers, 5, np.float32(least)) == (expected, first)
