"""What a draft token is worth in each row of a call that ends with its last row: more in rows that are behind.

Knows numbers only.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

SCALE = 8.0  # tokens; fewest forwards for 32 MT-Bench prompts in batches of 8, SmolLM2-135M, of 4, 8, 16 and 32


def weights(left: Sequence[int]) -> list[float]:
    """Per row the worth of one token of text; their mean is 1.

    Args:
        left: tokens that each row may still emit.
    """
    most = max(left)
    worth = [exp((each - most) / SCALE) for each in left]
    mean = sum(worth) / len(worth)
    return [each / mean for each in worth]
