"""Attention of packed rows with equal trees, whose slabs lie at equal distances: one call for all rows of a layer.

A call per row costs more than it saves where no row would be padded. Knows tensors only.

n rows of t nodes each, S slabs from the first row's to the last one's, K keys of a slab that are looked at; H heads of
keys and values, each for G query heads; D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch.nn.functional import scaled_dot_product_attention

LEAST_USE = 0.5  # share of the keys looked at that belong to a row

Mask = torch.Tensor | None


@dataclass(frozen=True, slots=True)
class RowKeys:
    """What one row attends to: flat keys from `begin` to `end`, in a slab of this offset and capacity."""

    offset: int
    capacity: int
    begin: int
    end: int
    mask: Mask  # [t, end - begin]; `None` hides nothing


@dataclass(eq=False, slots=True)
class Uniform:
    """Rows that one call of attention takes together.

    Attributes:
        base: offset of the first slab.
        step: tokens from one slab to the next.
        rows: the slab of each row, counted from the first one.
        nodes: t
        mask: [S, 1, t, K]
    """

    base: int
    step: int
    rows: list[int]
    nodes: int
    mask: torch.Tensor
    _folded: dict[int, torch.Tensor] = field(default_factory=dict, init=False)  # by G

    @property
    def end(self) -> int:
        """Where the last key that is looked at ends."""
        slabs, keys = self.mask.shape[0], self.mask.shape[3]
        return self.base + (slabs - 1) * self.step + keys

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float, scaling: float | None
    ) -> torch.Tensor:
        """[1, n * t, G * H, D] from [1, G * H, n * t, D] queries and [1, H, at least `end`, D] keys and values."""
        number, shared, slabs = len(self.rows), key.shape[1], self.mask.shape[0]
        group, size = query.shape[1] // shared, query.shape[3]
        rows = query.transpose(1, 2).reshape(number, self.nodes, shared, group, size)
        rows = rows.permute(0, 2, 3, 1, 4).reshape(number, shared, group * self.nodes, size)
        scattered = self.rows != list(range(slabs))
        if scattered:
            all_slabs = rows.new_zeros(slabs, *rows.shape[1:])
            all_slabs[self.rows] = rows
            rows = all_slabs
        output = scaled_dot_product_attention(
            rows, self._slabs(key), self._slabs(value), self._mask(group, query), dropout, scale=scaling
        )
        output = output[self.rows] if scattered else output
        output = output.reshape(number, shared, group, self.nodes, -1).permute(0, 3, 1, 2, 4)
        return output.reshape(1, number * self.nodes, shared * group, -1)

    def _slabs(self, flat: torch.Tensor) -> torch.Tensor:
        """[S, H, K, D] of [1, H, tokens, D], without a copy."""
        part = flat.narrow(2, self.base, self.end - self.base)
        return part.unfold(2, self.mask.shape[3], self.step).squeeze(0).permute(1, 0, 3, 2)

    def _mask(self, group: int, like: torch.Tensor) -> torch.Tensor:
        """[S, 1, G * t, K], made once per forward."""
        if group not in self._folded:
            self._folded[group] = self.mask.to(like).repeat(1, 1, group, 1)
        return self._folded[group]


def uniform(rows: Sequence[RowKeys], nodes: Sequence[int], lowest: torch.Tensor) -> Uniform | None:
    """The rows as one call of attention, or `None` where that is not possible or wasteful.

    Args:
        nodes: of each row.
        lowest: what hides a key, in the masks' type.
    """
    step, base = rows[0].capacity, min(row.offset for row in rows)
    same = len(set(nodes)) == 1 and all(row.capacity == step and (row.offset - base) % step == 0 for row in rows)
    if len(rows) < 2 or not same:
        return None
    slabs = [(row.offset - base) // step for row in rows]
    keys = max(row.end - row.offset for row in rows)
    used = sum(row.end - row.begin for row in rows)
    if used < LEAST_USE * keys * (max(slabs) + 1):
        return None
    mask = lowest.repeat(max(slabs) + 1, 1, nodes[0], keys)
    for slab, row in zip(slabs, rows, strict=True):
        own = mask[slab, 0, :, row.begin - row.offset : row.end - row.offset]
        if row.mask is None:
            own.zero_()
        else:
            own.copy_(row.mask)
    return Uniform(base, step, slabs, nodes[0], mask)
