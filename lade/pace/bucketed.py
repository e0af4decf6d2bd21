"""How rows share a step that comes in few sizes: those are the sizes to choose from. Knows numbers only."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from lade.pace.sharing import Packed, Plan, Row


class Bucketed(Packed):
    """As `Packed`, in sizes of a step of fixed shapes: a tree in between costs as much as the next of them.

    Args:
        buckets: sizes, ascending.
        limit: the most nodes of a row's tree, the root included.
    """

    def __init__(self, buckets: Sequence[int], limit: int) -> None:
        self._buckets, self._limit = buckets, limit

    def tokens(self, lengths: Sequence[int]) -> int:
        """Those of the bucket; the roots alone are what others are compared with."""
        nodes = sum(lengths)
        return nodes if nodes == len(lengths) else self._bucket(nodes, len(lengths))

    def sizes(self, rows: int) -> Sequence[int]:
        return [rows, *(bucket for bucket in self._buckets if bucket > rows)]

    def plan(self, rows: Sequence[Row]) -> Plan:
        """The whole trees cost as much as the bucket that holds them."""
        plan, number = super().plan(rows), len(rows)
        expected = {
            size if size == number else self._bucket(size, number): gain for size, gain in plan.expected.items()
        }
        return replace(plan, expected=expected)

    def _bucket(self, nodes: int, rows: int) -> int:
        """The size that holds so many nodes; as many as there are where none of the rows' limits does."""
        index = bisect_left(self._buckets, nodes)
        found = self._buckets[index] if index < len(self._buckets) else nodes
        return found if found <= self._limit * rows else nodes
