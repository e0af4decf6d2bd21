"""Attention of packed rows whose slabs lie at equal distances: one call for all rows of a layer.

Rows of few nodes take the time of the calls, so trees of unlike sizes are padded unless that makes too many nodes.
Knows masks, no model.

n rows, T nodes of all of them, at most t each; S slabs from the first row's to the last one's, K keys of a slab that
are looked at; H heads of keys and values, each for G query heads; D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch.nn.functional import scaled_dot_product_attention

from lade.target.masks import RowMask

LEAST_USE = 0.5  # share of the keys looked at that belong to a row, and of the padded nodes that are nodes


@dataclass(frozen=True, slots=True)
class RowKeys:
    """What one row attends to: flat keys from `begin` to `end`, in a slab of this offset and capacity."""

    offset: int
    capacity: int
    begin: int
    end: int
    mask: RowMask  # of t nodes and end - begin keys


@dataclass(eq=False, slots=True)
class Uniform:
    """Rows that one call of attention takes together.

    Attributes:
        base: offset of the first slab.
        step: tokens from one slab to the next.
        places: [T] of each node among the S * t of all slabs; `None` if these are the nodes, in their order.
        slabs, nodes, keys: S, t and K.
        make: their mask, [S, 1, t, K].
    """

    base: int
    step: int
    places: torch.Tensor | None
    slabs: int
    nodes: int
    keys: int
    make: Callable[[], torch.Tensor]
    _folded: dict[int, torch.Tensor] = field(default_factory=dict, init=False)  # by G

    @property
    def end(self) -> int:
        """Where the last key that is looked at ends."""
        return self.base + (self.slabs - 1) * self.step + self.keys

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float, scaling: float | None
    ) -> torch.Tensor:
        """[1, T, G * H, D] from [1, G * H, T, D] queries and [1, H, at least `end`, D] keys and values."""
        slabs, nodes = self.slabs, self.nodes
        shared = key.shape[1]
        group, size = query.shape[1] // shared, query.shape[3]
        rows = query[0].transpose(0, 1)
        if self.places is not None:
            rows = rows.new_zeros(slabs * nodes, shared * group, size).index_copy_(0, self.places, rows)
        rows = rows.reshape(slabs, nodes, shared, group, size).permute(0, 2, 3, 1, 4)
        output = scaled_dot_product_attention(
            rows.reshape(slabs, shared, group * nodes, size),
            self._slabs(key),
            self._slabs(value),
            self._mask(group, query),
            dropout,
            scale=scaling,
        )
        output = output.reshape(slabs, shared, group, nodes, -1).permute(0, 3, 1, 2, 4)
        output = output.reshape(slabs * nodes, shared * group, -1)
        return (output if self.places is None else output.index_select(0, self.places)).unsqueeze(0)

    def _slabs(self, flat: torch.Tensor) -> torch.Tensor:
        """[S, H, K, D] of [1, H, tokens, D], without a copy."""
        part = flat.narrow(2, self.base, self.end - self.base)
        return part.unfold(2, self.keys, self.step).squeeze(0).permute(1, 0, 3, 2)

    def _mask(self, group: int, like: torch.Tensor) -> torch.Tensor:
        """[S, 1, G * t, K], made once per forward."""
        if group not in self._folded:
            self._folded[group] = self.make().to(like).repeat(1, 1, group, 1)
        return self._folded[group]


def uniform(rows: Sequence[RowKeys], nodes: Sequence[int], lowest: torch.Tensor) -> Uniform | None:
    """The rows as one call of attention, or `None` where that is not possible or wasteful.

    Args:
        nodes: of each row.
        lowest: what hides a key, in the masks' type.
    """
    step, base, most = rows[0].capacity, min(row.offset for row in rows), max(nodes)
    if len(rows) < 2 or sum(nodes) < LEAST_USE * most * len(rows):
        return None
    if any(row.capacity != step or (row.offset - base) % step for row in rows):
        return None
    slabs = [(row.offset - base) // step for row in rows]
    keys = max(row.end - row.offset for row in rows)
    used = sum(row.end - row.begin for row in rows)
    if used < LEAST_USE * keys * (max(slabs) + 1):
        return None

    def make() -> torch.Tensor:
        mask = lowest.repeat(max(slabs) + 1, 1, most, keys)
        for slab, row, count in zip(slabs, rows, nodes, strict=True):
            own, made = mask[slab, 0, :count, row.begin - row.offset : row.end - row.offset], row.mask.whole()
            if made is None:
                own.zero_()
            else:
                own.copy_(made)
        return mask

    places = [slab * most + node for slab, count in zip(slabs, nodes, strict=True) for node in range(count)]
    whole = places == list(range((max(slabs) + 1) * most))
    return Uniform(base, step, None if whole else torch.tensor(places), max(slabs) + 1, most, keys, make)
