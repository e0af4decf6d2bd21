"""Softmax of scores that come in tiles, for the vector registers of any machine, and as Python."""

from collections.abc import Callable
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from vectorkinds import KINDS

numba = pytest.importorskip("numba")

from lade.base import softmaxvectors  # noqa: E402
from lade.base.softmax import LARGEST, ROWS, SHRINK, TOTAL, begin_softmax, weigh, weight_of_sums  # noqa: E402

LANES = 32
Weigh = Callable[..., None]


def compiled_for(kind: tuple[int, int]) -> Weigh:
    machine = softmaxvectors.weigh

    def call(scores: Any, keys: int, lanes: int, known: Any, short: bool) -> None:
        machine(scores, keys, lanes, known, short)

    found = numba.njit(call)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(softmaxvectors, "vectors", lambda: kind)
        found(np.zeros(LANES, np.float32), 1, LANES, np.zeros(ROWS * LANES, np.float32), False)
    return found  # type: ignore[no-any-return]


def as_python(scores: Any, keys: int, lanes: int, known: Any, short: bool) -> None:
    weigh(memoryview(scores), keys, lanes, memoryview(known), short)


@pytest.fixture(scope="module", params=[None, *KINDS.values()], ids=["python", *KINDS])
def weighing(request: pytest.FixtureRequest) -> Weigh:
    return as_python if request.param is None else compiled_for(request.param)


def weighed(weighing: Weigh, scores: np.ndarray, tile: int, short: bool = False) -> np.ndarray:
    """[lanes, keys] weights, each over its lane's sum, of scores [keys, lanes] that come in tiles."""
    known, found = np.full(ROWS * LANES, 7, np.float32), np.zeros((0, LANES), np.float32)
    begin_softmax(memoryview(known), LANES)  # type: ignore[arg-type]
    for begin in range(0, len(scores), tile):
        own = scores[begin : begin + tile].astype(np.float32).ravel()
        weighing(own, len(own) // LANES, LANES, known, short)
        found = np.concatenate([found * known[SHRINK * LANES : (SHRINK + 1) * LANES], own.reshape(-1, LANES)])
    factors = [weight_of_sums(memoryview(known), LANES, lane) for lane in range(LANES)]
    return np.asarray((found * np.array(factors)).T)


def softmax_of(scores: np.ndarray) -> np.ndarray:
    """By its definition, of each column."""
    weights = np.exp(scores - scores.max(0))
    return np.asarray((weights / weights.sum(0)).T)


@pytest.mark.parametrize("tile", [1, 3, 8, 64])
@pytest.mark.parametrize("wide", [1.0, 30.0, 300.0])
def test_tiles_make_one_softmax(weighing: Weigh, tile: int, wide: float) -> None:
    scores = np.random.default_rng(tile).standard_normal((20, LANES)) * wide
    scores = scores.astype(np.float32).astype(float)
    np.testing.assert_allclose(weighed(weighing, scores, tile), softmax_of(scores), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("tile", [2, 8])
def test_hidden_keys_weigh_nothing(weighing: Weigh, tile: int) -> None:
    """Not in a tile where a query sees no key either."""
    scores = np.random.default_rng(0).standard_normal((8, LANES))
    scores[:4, 5] = scores[6:, 5] = scores[4:, 6] = -inf
    np.testing.assert_allclose(weighed(weighing, scores, tile), softmax_of(scores), rtol=1e-5)


@pytest.mark.parametrize("tile", [1, 8])
@pytest.mark.parametrize("value", [nan, inf])
def test_scores_that_are_not_finite_make_their_lane_nan(weighing: Weigh, value: float, tile: int) -> None:
    """As in softmax, so that a draft that breaks the model is seen."""
    scores = np.random.default_rng(0).standard_normal((5, LANES))
    scores[2, 17] = value
    with np.errstate(invalid="ignore"):
        found = weighed(weighing, scores, tile)
    assert np.isnan(found[17]).all()
    assert np.isfinite(np.delete(found, 17, 0)).all()


def test_a_lane_without_keys_is_nan(weighing: Weigh) -> None:
    scores = np.zeros((3, LANES))
    scores[:, 4] = -inf
    assert np.isnan(weighed(weighing, scores, 3)[4]).all()


def test_short_weights_are_rounded_behind_their_sum(weighing: Weigh) -> None:
    """To the nearest bfloat16; the sum is that of the numbers before."""
    scores = np.random.default_rng(1).standard_normal((9, LANES)).astype(np.float32)
    sums, weights = dict[bool, np.ndarray](), dict[bool, np.ndarray]()
    for short in (False, True):
        known, own = np.zeros(ROWS * LANES, np.float32), scores.ravel().copy()
        begin_softmax(memoryview(known), LANES)  # type: ignore[arg-type]
        weighing(own, 9, LANES, known, short)
        sums[short], weights[short] = known[TOTAL * LANES : (TOTAL + 1) * LANES], own
        assert (known[LARGEST * LANES : (LARGEST + 1) * LANES] == scores.max(0)).all()
    assert (sums[True] == sums[False]).all()
    assert not (weights[True].view(np.uint32) & 0xFFFF).any()
    assert (np.abs(weights[True] - weights[False]) <= weights[False] * 2**-8).all()
    assert (weights[True] > weights[False]).any()
    assert (weights[True] < weights[False]).any()


def test_other_lanes_change_nothing(weighing: Weigh) -> None:
    """Not by a bit."""
    scores = np.random.default_rng(2).standard_normal((6, LANES)).astype(np.float32)
    turned = np.roll(scores, 5, 1)
    assert (weighed(weighing, scores, 4) == np.roll(weighed(weighing, turned, 4), -5, 0)).all()
