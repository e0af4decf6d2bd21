"""Random rows of a packed forward, what one layer computes of them, and what attention is by its definition."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch.nn.functional import scaled_dot_product_attention

from lade.target.masks import RowMask
from lade.target.rowattention import PackedKind
from lade.target.ways import Call

LOWEST = torch.finfo(torch.float64).min
SCALING = 0.3


class Row:
    """A random row: keys that only some nodes see, keys that all see, and a tree."""

    def __init__(self, hidden: int, seen: int, nodes: int, generator: torch.Generator) -> None:
        self.keys, self.nodes = hidden + seen + nodes, nodes
        visible = torch.rand(nodes, self.keys, generator=generator) < 0.6
        visible[:, hidden : hidden + seen] = True
        visible[:, hidden + seen :] = visible[:, hidden + seen :].tril().fill_diagonal_(True)
        self.mask = torch.where(visible, 0.0, torch.tensor(LOWEST, dtype=torch.float64))
        tree = self.mask[:, hidden + seen :]
        shown = None if hidden else visible[:, seen:]
        self.seen = RowMask(
            lambda keys: torch.cat([self.mask[:, :keys], tree], 1), hidden + seen, hidden, not visible.all(), shown
        )


def call_of(
    rows: Sequence[Row],
    shared: int,
    group: int,
    generator: torch.Generator,
    dtype: torch.dtype = torch.float64,
    size: int = 8,
) -> Call:
    """Slabs of the rows with a gap before each."""
    spans, end = list[tuple[int, int]](), 0
    for row in rows:
        spans.append((end + 2, end + 2 + row.keys))
        end += 2 + row.keys
    nodes = sum(row.nodes for row in rows)
    query = torch.randn(1, shared * group, nodes, size, dtype=torch.float64, generator=generator)
    key, value = torch.randn(2, 1, shared, end + 3, size, dtype=torch.float64, generator=generator)
    kind = PackedKind(end, spans, [row.seen for row in rows], [row.nodes for row in rows])
    states = query.to(dtype), key.to(dtype).narrow(2, 0, end), value.to(dtype).narrow(2, 0, end)
    return Call(kind, *states, 0.0, SCALING)


def expected_of(call: Call, rows: Sequence[Row]) -> torch.Tensor:
    """[1, T, G * H, D] in float64."""
    query, key, value = (states.double() for states in (call.query, call.key, call.value))
    spans = pairwise([0, *accumulate(row.nodes for row in rows)])
    alone = [
        scaled_dot_product_attention(
            query[:, :, first:last],
            key[:, :, begin:end],
            value[:, :, begin:end],
            row.mask,
            scale=SCALING,
            enable_gqa=True,
        )
        for row, (first, last), (begin, end) in zip(rows, spans, call.kind.spans, strict=True)
    ]
    return torch.cat(alone, 2).transpose(1, 2)
