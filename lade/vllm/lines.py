"""Which lines of a step's logits belong to which row, where vLLM says how many there are in all, but not of each row.

A row has one line per token that was computed for it: its last token, and as many of its draft as vLLM kept. R rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise


def spans(fewest: Sequence[int], most: Sequence[int], total: int) -> list[range | None]:
    """The lines of each row where the bounds leave one possibility; `None` where they do not.

    Args:
        fewest, most: [R] bounds on the lines of each row.
        total: lines of all rows.
    """
    low, high = [0, *accumulate(fewest)], [0, *accumulate(most)]
    if not low[-1] <= total <= high[-1] or any(few > many for few, many in zip(fewest, most, strict=True)):
        return [None] * len(fewest)
    # The lines before a row are no fewer than `low`, and so few that the rows behind it can have the rest.
    bounds = [
        (max(few, total - (high[-1] - many)), min(many, total - (low[-1] - few)))
        for few, many in zip(low, high, strict=True)
    ]
    return [
        range(first[0], last[0]) if first[0] == first[1] and last[0] == last[1] else None
        for first, last in pairwise(bounds)
    ]
