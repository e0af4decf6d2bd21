"""Tiles of scalar products, for the vector registers of any machine: those that this one lacks are made of its own."""

from collections.abc import Callable

import numpy as np
import pytest
from vectorkinds import KINDS

numba = pytest.importorskip("numba")

from lade.base import vectors  # noqa: E402

TOKENS, LINES = 3, 4


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def tile(request: pytest.FixtureRequest) -> Callable[..., None]:
    """The machine code for vectors of a kind."""
    multiply_tile = vectors.multiply_tile

    def call(states: np.ndarray, weight: np.ndarray, size: int, out: np.ndarray, stride: int) -> None:
        multiply_tile(states, weight, weight[LINES * size :], size, out, stride, TOKENS, LINES, 2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "vectors", lambda: request.param)
        compiled = numba.njit(call)
        compiled(*arguments(8, 0)[:5])
    return compiled


def arguments(size: int, seed: int) -> tuple[np.ndarray, np.ndarray, int, np.ndarray, int, np.ndarray]:
    """Of `call`, and the products that are expected."""
    noise = np.random.default_rng(seed)
    states, weight = (noise.standard_normal((number, size), np.float32) for number in (TOKENS, LINES))
    out = np.full(TOKENS * 7, 9, np.float32)
    return states.ravel(), weight.ravel(), size, out, 7, states.astype(float) @ weight.astype(float).T


@pytest.mark.parametrize("size", [0, 1, 3, 4, 15, 16, 17, 40, 63])
def test_products(tile: Callable[..., None], size: int) -> None:
    *given, expected = arguments(size, seed=size)
    tile(*given)
    rows = given[3].reshape(TOKENS, 7)
    np.testing.assert_allclose(rows[:, :LINES], expected, rtol=1e-5, atol=1e-5)
    assert (rows[:, LINES:] == 9).all()


def test_a_product_does_not_depend_on_its_tile(tile: Callable[..., None]) -> None:
    """Nor on where its state and its line stand."""
    states, weight, size, out, stride, _ = arguments(41, seed=0)
    states[:size] = states[size : 2 * size] = states[2 * size :]
    weight[:size] = weight[2 * size : 3 * size]
    tile(states, weight, size, out, stride)
    rows = out.reshape(TOKENS, stride)
    assert (rows[0] == rows[1]).all()
    assert (rows[1] == rows[2]).all()
    assert (rows[:, 0] == rows[:, 2]).all()


def test_vectors_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """AVX-512 has short vectors too, or only half of the registers."""
    known: dict[str, bool] = {}
    monkeypatch.setattr(vectors.binding, "get_host_cpu_features", lambda: known)
    assert vectors.vectors() == (4, 16)
    known["avx"] = known["avx512f"] = True
    assert vectors.vectors() == (8, 16)
    known["avx512vl"] = True
    assert vectors.vectors() == (16, 32)
    known.clear()
    known["neon"] = True
    assert vectors.vectors() == (4, 32)
