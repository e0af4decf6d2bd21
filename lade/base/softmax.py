"""Softmax of scores that come a tile of keys at a time, as Python (`lade.base.softmaxvectors` as machine code)."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import numpy as np

from lade.base.bits import number, rounded
from lade.base.compiled import compiled, compiled_as

Array = Any  # of numbers: a numpy array, or its memoryview

# exp(x) = 2^n 2^f: 1 / ln 2, a polynomial of 2^f with a relative error of 2e-9 for |f| <= 1/2 (fitted at Chebyshev
# nodes; the highest power first), and where it becomes 0.
PER_OCTAVE = np.float32(1.4426950408889634)
TERMS = tuple(
    map(np.float32, (1.53375769e-4, 1.33998604e-3, 9.61851953e-3, 5.55032900e-2, 2.40226466e-1, 6.93147206e-1, 1.0))
)
FARTHEST = np.float32(-87.0)
# What is known of all keys before a tile, a row of lanes each: the largest score, the sum of weights, and by what the
# last tile's new largest score made older weights smaller.
LARGEST, TOTAL, SHRINK = range(3)
ROWS = 3


@compiled
def exponential(x: Any) -> Any:
    """exp(x) of a float32 that is not positive, to seven digits; without a library, so that it is vectorised."""
    x = x if x > FARTHEST else FARTHEST
    octaves = np.float32(x * PER_OCTAVE)
    whole = np.int32(octaves - np.float32(0.5))
    rest = np.float32(octaves - np.float32(whole))
    value = TERMS[0]
    for term in TERMS[1:]:
        value = np.float32(value * rest + term)
    power = np.uint32(np.uint32(np.int32(whole + np.int32(127))) << np.uint32(23)).view(np.float32)
    return np.float32(value * power) if x > FARTHEST else np.float32(0.0)


@compiled
def begin_softmax(known: Array, lanes: int) -> None:
    """What is known of no keys."""
    for lane in range(lanes):
        known[LARGEST * lanes + lane] = np.float32(-inf)
        known[TOTAL * lanes + lane] = np.float32(0.0)


def _weigh() -> Any:
    from lade.base.softmaxvectors import weigh

    return weigh


@compiled_as(_weigh)
def weigh(scores: Array, keys: int, lanes: int, known: Array, short: bool) -> None:
    """A tile's scores become weights (`lade.base.softmaxvectors.weigh`)."""
    for lane in range(lanes):
        before, own = known[LARGEST * lanes + lane], [scores[key * lanes + lane] for key in range(keys)]
        largest = before
        for score in own:
            largest = score if score > largest else largest
        base = largest if largest > -inf else 0.0
        shrink = _weight(before - base)
        total = known[TOTAL * lanes + lane] * shrink
        for key, score in enumerate(own):
            weight = _weight(score - base)
            total += weight
            scores[key * lanes + lane] = number(rounded(weight, short), short)
        for row, value in ((LARGEST, largest), (TOTAL, total), (SHRINK, shrink)):
            known[row * lanes + lane] = value


def _weight(distance: float) -> Any:
    return exponential(np.float32(distance)) if distance == distance else np.float32(nan)


@compiled
def weight_of_sums(known: Array, lanes: int, lane: int) -> Any:
    """One over the sum of a lane's weights; NaN where a score is NaN, or the largest is infinite."""
    total = known[TOTAL * lanes + lane]
    return np.float32(np.float32(1.0) / np.float32(total)) if total != 0.0 else np.float32(nan)
