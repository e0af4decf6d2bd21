"""The sources of the scored tree, most specific first, the buckets that their weights are learned in, and the priors.

stage  0 reference  1 own text  2 the window's n-grams  3..6 recycled, contexts of 4, 3, 2, 1 tokens  7 warm table
"""

from __future__ import annotations

from lade.memory.calibration import Calibration
from lade.memory.recycle import CONTEXT, LENGTHS

TOP = 8  # predictions remembered per context, and children weighed per node
SOURCES = ("reference", "suffix", "window", *(f"recycled-{length}" for length in LENGTHS), "warm")
REFERENCE, SUFFIX, WINDOW, RECYCLED, WARM = 0, 1, 2, 3, 3 + len(LENGTHS)

DEPTHS = 3  # children of the root, of nodes at depth 1-2, of deeper ones
GRAMS = 3  # n-grams matched by one token, two, more
MATCHES = 6  # matches of 1, 2-3, 4-7, 8-15, 16-31, 32 and more tokens
PRIORS = (
    [0.02, 0.06, 0.3, 0.8, 0.95, 0.99] * DEPTHS,
    [0.02, 0.05, 0.1, 0.2, 0.4, 0.6] * DEPTHS,
    [0.1, 0.2, 0.3] * DEPTHS,
    *([weight] * DEPTHS for weight in (0.6, 0.6, 0.6, 0.8)),
    [0.9] * DEPTHS * (CONTEXT + 1),
)


def depth_bucket(depth: int) -> int:
    return 0 if depth == 0 else 1 if depth < 3 else 2


def match_bucket(depth: int, length: int) -> int:
    return depth * MATCHES + min(length.bit_length(), MATCHES) - 1


def gram_bucket(depth: int, length: int) -> int:
    return depth * GRAMS + min(length, GRAMS) - 1


def warm_bucket(depth: int, length: int) -> int:
    return depth * (CONTEXT + 1) + length


def prior_calibration() -> Calibration:
    return Calibration(PRIORS)
