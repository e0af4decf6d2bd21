"""Rows of one launch as integers on the device: where a row's queries and keys lie, and what its tree looks like.

A launch reads a table [n, FIELDS] and one list of integers, both int64, so that a captured graph can be replayed for
other rows: only `most_nodes` and `most_keys`, which set the number of programs, are numbers of the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

FIELDS = 8
WORD = 64  # bits
CHAIN = -1  # as the place of a tree


@dataclass(frozen=True, slots=True)
class Row:
    """Queries of one row. A token's index is its place in the row's keys: `held` + j for node j, in memory.

    Attributes:
        first: place of its first query among all queries.
        nodes: number of its queries, t; they are the last ones of its tree.
        keys: place of its first key among all keys.
        held: keys before the tree.
        origin: what is added to an index for a position: chunks begin where it divides by their size, and keys at
            negative positions are padding, which is not seen.
        columns: nodes of the tree, C; t - C of them are no queries, but have keys.
        tree: place of C depths, and of t * ceil(C / 64) words behind them, among the integers; bit j of a node's words
            says whether it sees node j. `CHAIN`: each node sees those before it.
    """

    first: int
    nodes: int
    keys: int
    held: int
    origin: int
    columns: int
    tree: int = CHAIN

    def fields(self) -> tuple[int, ...]:
        """Its line of the table."""
        done = self.columns - self.nodes
        return self.first, self.nodes, self.keys, self.held, self.origin, done, self.columns, self.tree


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one launch.

    Attributes:
        table: [n, FIELDS] int64, `Row.fields`.
        integers: int64, what `Row.tree` points into.
        most_nodes: no row has more nodes.
        most_keys: no row has more keys, its tree included.
    """

    table: torch.Tensor
    integers: torch.Tensor
    most_nodes: int
    most_keys: int

    @classmethod
    def of(cls, rows: Sequence[Row], integers: Sequence[int], device: torch.device) -> Rows:
        """Send rows to a device."""
        numbers = [number for row in rows for number in row.fields()]
        sent = torch.tensor([*numbers, *integers], dtype=torch.int64, device=device)
        table, rest = sent[: len(numbers)].view(-1, FIELDS), sent[len(numbers) :]
        return cls(table, rest, max(row.nodes for row in rows), max(row.held + row.columns for row in rows))


def scale_of(query: torch.Tensor, scaling: float | None) -> float:
    """Of the scores of [..., D] queries: 1 / sqrt(D) where the layer gives none."""
    return float(query.shape[-1] ** -0.5) if scaling is None else scaling


@dataclass(frozen=True, slots=True)
class Rules:
    """How a layer attends.

    Attributes:
        scale: of the scores.
        window: keys that a node sees at most, itself included, by position; `None` for all.
        chunk: a node sees the positions of its chunk of so many; `None` for all.
        cap: c in c * tanh(score / c); `None` for the scores as they are.
        sinks: [heads of the queries] scores of keys without a value; `None` for none.
    """

    scale: float
    window: int | None = None
    chunk: int | None = None
    cap: float | None = None
    sinks: torch.Tensor | None = None
