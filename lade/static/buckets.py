"""The sizes that a static step comes in: a graph is captured once per size, so there are few of them."""

from __future__ import annotations

from bisect import bisect_left

from lade.base.powers import power_of_two

NODES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # of all rows of a step
SMALLEST_CAPACITY = 256  # tokens


def nodes_bucket(nodes: int) -> int:
    """The smallest size that holds so many nodes.

    Raises:
        ValueError: no size does.
    """
    index = bisect_left(NODES, nodes)
    if index == len(NODES):
        raise ValueError(f"nodes must be at most {NODES[-1]}, got {nodes}")
    return NODES[index]


def rows_bucket(rows: int) -> int:
    """The smallest power of two that holds so many rows."""
    return power_of_two(rows)


def capacity_bucket(tokens: int) -> int:
    """The smallest capacity, a power of two, of a slot for so many tokens."""
    return max(SMALLEST_CAPACITY, power_of_two(tokens))
