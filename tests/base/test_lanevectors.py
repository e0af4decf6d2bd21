"""Sums of rows, for the vector registers of any machine, and as Python."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from vectorkinds import DTYPES, KINDS, stored

numba = pytest.importorskip("numba")

from lade.base import lanes, lanevectors  # noqa: E402

WIDTHS = (1, 16, 48, 64)
Call = Callable[..., None]


def compiled_for(kind: tuple[int, int]) -> dict[int, Call]:
    """The machine code for vectors of a kind, by the widths of rows."""
    multiply_lanes = lanevectors.multiply_lanes

    def sums_of(width: int) -> Call:
        def call(*given: Any) -> None:
            multiply_lanes(
                given[0], given[1], given[2], given[3], given[4], given[5], given[6], given[7], given[8], width
            )

        return numba.njit(call)  # type: ignore[no-any-return]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanevectors, "vectors", lambda: kind)
        sums = {width: sums_of(width) for width in WIDTHS}
        for dtype in DTYPES:
            for width, call in sums.items():
                call(*sums_case(width, 1, 3, dtype)[:9])
    return sums


def as_python() -> dict[int, Call]:
    def sums_of(width: int) -> Call:
        return lambda *given: lanes.multiply_lanes(*map(seen, given), width)

    return {width: sums_of(width) for width in WIDTHS}


def seen(value: Any) -> Any:
    return memoryview(value) if isinstance(value, np.ndarray) else value


@pytest.fixture(scope="module", params=[None, *KINDS.values()], ids=["python", *KINDS])
def loops(request: pytest.FixtureRequest) -> dict[int, Call]:
    return as_python() if request.param is None else compiled_for(request.param)


def sums_case(width: int, number: int, rows: int, dtype: str, side_by_side: bool = False) -> tuple[Any, ...]:
    """Arguments, and the sums that are expected; what no sum may touch is 9 or NaN.

    Args:
        side_by_side: whether the sums' factors are, so that those of one sum are not.
    """
    noise = np.random.default_rng(rows)
    factors, matrix = np.full((number, rows + 3), np.nan, np.float32), np.full((rows, width + 2), np.nan, np.float32)
    factors[:, :rows] = noise.standard_normal((number, rows))
    matrix[:, :width] = noise.standard_normal((rows, width))
    array, numbers = stored(matrix, dtype)
    out, expected = np.full(number * (width + 5), 9, np.float32), np.full((number, width + 5), 9.0)
    expected[:, :width] = factors[:, :rows].astype(float) @ numbers[:, :width].astype(float)
    given = (np.ascontiguousarray(factors.T).ravel(), 1, number) if side_by_side else (factors.ravel(), rows + 3, 1)
    return *given, array, width + 2, rows, out, width + 5, number, expected


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [0, 1, 3, 4, 9])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("side_by_side", [False, True])
def test_sums_of_rows(loops: dict[int, Call], side_by_side: bool, width: int, number: int, dtype: str) -> None:
    for rows in (0, 1, 2, 7):
        *given, expected = sums_case(width, number, rows, dtype, side_by_side)
        loops[width](*given)
        np.testing.assert_allclose(given[6].reshape(expected.shape), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_does_not_depend_on_the_others(loops: dict[int, Call], dtype: str) -> None:
    """Not by a bit, so that a query alone and in a tree gets the same of its weights."""
    factors, apart, step, array, stride, rows, out, behind, number, _ = sums_case(64, 7, 31, dtype)
    loops[64](factors, apart, step, array, stride, rows, out, behind, number)
    for each in range(number):
        alone = np.zeros(64, np.float32)
        loops[64](factors[each * apart :], apart, step, array, stride, rows, alone, 64, 1)
        assert (alone == out[each * behind : each * behind + 64]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_number(dtype: str) -> None:
    given = np.array([[1.5, -np.inf, -0.25]])
    array, _ = stored(given, dtype)
    float_at = lanevectors.float_at
    machine = numba.njit(lambda numbers, place: float_at(numbers, place))
    for place, expected in enumerate(given.ravel()):
        assert machine(array, place) == lanes.float_at(memoryview(array), place) == expected
