"""Predictions coupled with the sampling noise of the tokens to come, which is known before they are chosen.

Sampled text is `argmax(p / noise)` with exponential noise per index of the text (`lade.core.noise`). A draft that takes
the same noise is right more often than one that takes the likeliest token: with p known it is always right (Gumbel
coupling, Daliri, Musco and Suresh, arXiv 2408.07978). The text does not depend on it. V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import TYPE_CHECKING

import numpy as np

from lade.base.compiled import compiled
from lade.memory.hashing import Array

if TYPE_CHECKING:
    from lade.memory.regions import Regions

COUPLED = 4  # indices whose noise is at hand: those of the children of nodes down to this depth, itself excluded
TINY = 1e-30  # the least noise that is divided by: drawn numbers may be 0
MEDIAN = log(2)  # of exponential noise: taken for tokens that are not among the predicted ones
# Fields of a row's integers: the index of the next token of the text in the ring of noise, and how many indices from
# there on are in it.
NEXT, KNOWN = range(2)
FIELDS = 2
NO_NOISE = np.zeros(0, np.float32)

Source = Callable[[int], np.ndarray]  # index of an emitted token -> its noise, [V] float32


class Coupling:
    """The noise of a request's next tokens, in a ring of `COUPLED` indices.

    Args:
        regions: the request's integers.
        own: where the fields begin.
        source: gives the noise; `None` for a request that is not sampled.

    Attributes:
        ring: float32, V numbers per index; empty where there is no noise.
    """

    def __init__(self, regions: Regions, own: int, source: Source | None) -> None:
        self._regions, self._own, self._source = regions, own, source
        self.ring = NO_NOISE
        self._end = 0  # of the indices that the ring has had

    def advance(self, emitted: int, deepest: int) -> None:
        """Have the noise of the next tokens ready.

        Args:
            emitted: tokens of the text that are emitted.
            deepest: the largest depth of a node of the next draft.
        """
        if self._source is None:
            return
        known = min(deepest, COUPLED)
        for index in range(max(emitted, self._end), emitted + known):
            noise = self._source(index)
            if not len(self.ring):
                self.ring = np.zeros(COUPLED * len(noise), np.float32)
            begin = index % COUPLED * len(noise)
            self.ring[begin : begin + len(noise)] = noise
        self._end = max(self._end, emitted + known)
        ints, own = self._regions.ints, self._own
        ints[own + NEXT], ints[own + KNOWN] = emitted % COUPLED, known


@compiled
def couple(ints: Array, own: int, ring: Array, depth: int, tokens: Array, masses: Array, number: int) -> None:
    """Turn what the model is expected to find likely into what it is expected to choose, given the noise.

    Args:
        own: where the fields begin.
        depth: of the node that the predictions follow.
        tokens, masses: the first `number` are the predictions; they are ordered anew, likeliest first.
    """
    if depth >= ints[own + KNOWN]:
        return
    size = len(ring) // COUPLED
    begin, rest = (ints[own + NEXT] + depth) % COUPLED * size, 1.0
    for rank in range(number):
        rest -= masses[rank]
    total = max(rest, 0.0) / MEDIAN
    for rank in range(number):
        token = tokens[rank]
        mass = masses[rank] / (max(ring[begin + token], TINY) if token < size else MEDIAN)
        total += mass
        place = rank
        while place > 0 and masses[place - 1] < mass:
            tokens[place], masses[place] = tokens[place - 1], masses[place - 1]
            place -= 1
        tokens[place], masses[place] = token, mass
    if total > 0:
        for rank in range(number):
            masses[rank] /= total
