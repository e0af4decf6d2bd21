"""How far a warm table is believed in the text at hand: how often the text's tokens were among its predictions.

The ratio of tokens found to probability claimed is near 1 for a calibrated table and near 0 for a useless one.
"""

from __future__ import annotations

from dataclasses import dataclass

from lade.base.compiled import compiled
from lade.memory.backoff import COLUMNS, TOKENS, find_warm
from lade.memory.hashing import Array

FOUND, CLAIMED, SHARE = range(3)  # fields of a row's floats


@dataclass(frozen=True, slots=True)
class CoveragePolicy:
    """How much of a warm table's probability counts.

    Attributes:
        prior: tokens found as claimed before any observation.
        prompt: weight of a token of the prompt, which the model did not write.
        places: tokens of the prompt that are looked at, the last ones.
        enough: ratio from which all probability counts; below, its square does.
        least: share of probability below which the table predicts nothing.
    """

    prior: float = 1.0
    prompt: float = 0.5
    places: int = 48
    enough: float = 0.4
    least: float = 0.25


COVERAGE = CoveragePolicy()
ENOUGH = COVERAGE.enough


@compiled
def cover(
    floats: Array, own: int, ints: Array, masses: Array, a: int, b: int, c: int, d: int, token: int, weight: float
) -> None:
    """Compare a table's prediction after a context with the token that came.

    Args:
        own: where the fields begin in the floats.
        ints, masses: of the table.
    """
    row, _ = find_warm(ints, masses, a, b, c, d)
    if row >= 0:
        for rank in range(row * ints[COLUMNS], row * ints[COLUMNS] + ints[COLUMNS]):
            floats[own + CLAIMED] += weight * masses[rank]
            if ints[ints[TOKENS] + rank] == token:
                floats[own + FOUND] += weight
    share = min(1.0, floats[own + FOUND] / floats[own + CLAIMED] / ENOUGH)
    floats[own + SHARE] = share * share
