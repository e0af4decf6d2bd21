"""How the rows of a step share its forward: which sizes a step may have, and what each of them brings.

The size of a step is its number of tokens, those of all rows together, roots included. For one row both ways are the
same. Knows numbers only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, zip_longest
from operator import itemgetter
from typing import NamedTuple, Protocol, TypeVar

from lade.pace.belief import Belief
from lade.pace.knots import KNOTS

Item = TypeVar("Item")


class Row(NamedTuple):
    """One row of a step.

    Attributes:
        masses: path probabilities of its tree's nodes, the root's 1 first, in the order in which they are kept.
        belief: that they hold in its text.
        repeats: whether its last token stands in its text before, so that a draft might be known. If the belief is low,
            chance is the likelier reason.
        weight: what one token of text is worth in this row; 1 where all rows count alike.
    """

    masses: Sequence[float]
    belief: Belief
    repeats: bool = False
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a step may carry.

    Attributes:
        expected: size -> expected tokens of text per row; the smallest size, all roots, first.
        split: from a size to the nodes of each row.
    """

    expected: Mapping[int, float]
    split: Callable[[int], list[int]]


class Sharing(Protocol):
    """A way to share a step. R rows."""

    def tokens(self, lengths: Sequence[int]) -> int:
        """Tokens that a forward computes for trees of these lengths."""
        ...

    def context(self, contexts: Sequence[int]) -> int:
        """The context on which the cost of a step depends, from those of its rows."""
        ...

    def sizes(self, rows: int) -> Sequence[int]:
        """The sizes to choose from, ascending, apart from that of whole trees."""
        ...

    def least(self, nodes: int, rows: int) -> int:
        """The size up to which trees grow at least, where one row's tree grows to `nodes`."""
        ...

    def groups(self, rows: Sequence[Item], size: int) -> list[tuple[Sequence[Item], int]]:
        """Rows that grow together, and the tokens that they share."""
        ...

    def plan(self, rows: Sequence[Row]) -> Plan:
        """What the step may carry, after all trees have grown."""
        ...


class Padded:
    """Rows are padded to the longest tree: one number of nodes for all."""

    def tokens(self, lengths: Sequence[int]) -> int:
        return len(lengths) * max(lengths)

    def context(self, contexts: Sequence[int]) -> int:
        return max(contexts)

    def sizes(self, rows: int) -> Sequence[int]:
        return [knot * rows for knot in KNOTS]

    def least(self, nodes: int, rows: int) -> int:
        return nodes * rows

    def groups(self, rows: Sequence[Item], size: int) -> list[tuple[Sequence[Item], int]]:
        return [([row], size // len(rows)) for row in rows]

    def plan(self, rows: Sequence[Row]) -> Plan:
        number = len(rows)
        gains = [_gains(row, number) for row in rows]
        sums = gains[0] if number == 1 else map(sum, zip_longest(*gains, fillvalue=0.0))
        expected = list(accumulate(sums, initial=1.0))
        sizes = _up_to(self.sizes(number), number * len(expected))
        return Plan(
            {size: expected[size // number - 1] for size in sizes},
            lambda size: [min(size // number, len(row.masses)) for row in rows],
        )


class Packed:
    """Rows stand behind one another without padding: each node goes to the row where it brings the most."""

    def tokens(self, lengths: Sequence[int]) -> int:
        return sum(lengths)

    def context(self, contexts: Sequence[int]) -> int:
        return sum(contexts) // len(contexts)

    def sizes(self, rows: int) -> Sequence[int]:
        return _packed_sizes(rows)

    def least(self, nodes: int, rows: int) -> int:
        return rows + nodes - 1

    def groups(self, rows: Sequence[Item], size: int) -> list[tuple[Sequence[Item], int]]:
        return [(rows, size)]

    def plan(self, rows: Sequence[Row]) -> Plan:
        number = len(rows)
        order = _best_first(rows)
        expected = list(accumulate((gain for _, _, gain in order), initial=1.0))
        sizes = _up_to(self.sizes(number), number + len(order))

        def split(size: int) -> list[int]:
            nodes = [1] * number
            for _, row, _ in order[: size - number]:
                nodes[row] += 1
            return nodes

        return Plan({size: expected[size - number] for size in sizes}, split)


def _gains(row: Row, rows: int) -> list[float]:
    """Expected tokens of text that each node behind the root adds, by their worth, over the number of rows."""
    share = row.belief.holds * row.weight / rows
    return [share * mass for mass in row.masses[1:]]


def _best_first(rows: Sequence[Row]) -> list[tuple[float, int, float]]:
    """All nodes but the roots, the best first, each behind those before it in its row: key, row, gain."""
    order: list[tuple[float, int, float]] = []
    for index, row in enumerate(rows):
        gains = _gains(row, len(rows))
        order += [(-low, index, gain) for low, gain in zip(accumulate(gains, min), gains, strict=True)]
    order.sort(key=itemgetter(0))
    return order


def _up_to(sizes: Sequence[int], whole: int) -> Sequence[int]:
    return [*sizes[: bisect_left(sizes, whole)], whole]


@cache
def _packed_sizes(rows: int) -> Sequence[int]:
    """Knots of the step's tokens and of its tokens per row.

    No finer ones: in 8 rows of SmolLM2-135M in float32 on a CPU (AVX-512), 15 tokens cost 1.36 times as much as 8, and
    16 cost 1.01 times. And sizes stop growing where the next one promises less than the hysteresis.
    """
    return sorted({size for knot in KNOTS for size in (knot, knot * rows) if size >= rows})


PADDED, PACKED = Padded(), Packed()
