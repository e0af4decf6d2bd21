"""Reference texts for methods, one row each in `REFERENCES`. Knows no method.

A text is made before the run that uses it, so its cost is not measured.
"""

import random
from collections.abc import Callable, Sequence

TokenIds = list[int]


def equal(plain_text: Sequence[int], vocabulary: int, seed: int) -> TokenIds:
    """Plain decoding's text."""
    return list(plain_text)


def useless(plain_text: Sequence[int], vocabulary: int, seed: int) -> TokenIds:
    """Random tokens, as many as plain decoding's text has."""
    return random.Random(seed).choices(range(vocabulary), k=len(plain_text))


REFERENCES: dict[str, Callable[[Sequence[int], int, int], TokenIds]] = {"equal": equal, "useless": useless}
