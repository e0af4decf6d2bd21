"""Attention of a fused decoder: queries and keys are rotated, folded and stored in one loop, then each row attends.

T nodes of all rows, t of one; S heads of keys and values, each for G query heads; D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from lade.base.bits import SHORT_BYTES, bits_of
from lade.target.choice import Choice, timed
from lade.target.fused.loops import ROTATE, Heads
from lade.target.fused.plan import Layer
from lade.target.layers import TreeLayer
from lade.target.looped import Looped, RowTable
from lade.target.queryloops import Heads as LoopHeads
from lade.target.rowattention import PackedForward, PackedKind, RootForward, stand_in
from lade.target.rowloops import ATTEND
from lade.target.ways import Call, Masked, Way

Forward = PackedForward | RootForward


class KindRows:
    """The rows of a forward in layers of one mask kind.

    Args:
        index: of the kind.
        places: [T] of the nodes in the buffers.
        cosines, sines: [T * D / 2] bits, of the nodes' positions.

    Attributes:
        places: as an array.
    """

    def __init__(self, forward: Forward, index: int, places: list[int], cosines: np.ndarray, sines: np.ndarray) -> None:
        self.forward, self.index = forward, index
        self.places, self._short = np.array(places, np.int64), cosines.itemsize == SHORT_BYTES
        self.cosines, self.sines = cosines, sines
        self._rows: _Rows | None = None

    @property
    def ends(self) -> list[int]:
        """Of each row's nodes."""
        return [1] if isinstance(self.forward, RootForward) else [end for _, end in self.forward.spans]

    @property
    def may_loop(self) -> bool:
        """Whether the loop of attention is among the ways, and times decide."""
        if isinstance(self.forward, RootForward):
            return True
        ways = self.forward.ways
        return ways.timed and any(way.name == Looped.name for way in ways.each)

    @property
    def spans(self) -> Sequence[tuple[int, int]]:
        """Where each row's keys begin and end."""
        kind = self.forward.kinds[self.index]
        return kind.spans if isinstance(kind, PackedKind) else [kind]

    @property
    def table(self) -> RowTable:
        """What the loop of attention reads of the rows."""
        kind = self.forward.kinds[self.index]
        return kind.table if isinstance(kind, PackedKind) else RowTable.whole(*kind)

    def attend(
        self, layer: Layer, own: TreeLayer, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """[1, T, S * G * D] of one layer.

        Args:
            own: its keys and values.
            query: [1, T, S * G * D] products.
            key, value: [1, T, S * D] products.
        """
        heads = (1, len(self.places), -1, layer.size)
        keys, values = own.buffers(key.view(heads).transpose(1, 2), value.view(heads).transpose(1, 2))
        if self._rows is None:
            self._rows = self._made(query.view(heads).transpose(1, 2), keys, values, layer.scaling)
        rows = self._rows
        ROTATE(
            *(bits_of(query), bits_of(key), bits_of(value), self.cosines, self.sines, self.places),
            *(rows.ends, rows.heads, self._short, rows.bits, bits_of(keys), bits_of(values)),
        )
        return rows.attend(keys, values, layer.scaling)

    def _made(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float) -> _Rows:
        """What the layers share: their shapes are equal."""
        if isinstance(self.forward, RootForward):
            if ATTEND.ready:
                return _LoopedRows(self.ends, self.table, query, keys)
            return _OtherRows(self.forward.attend, self.index, self.forward.kinds[self.index][1], query, keys)
        return self._chosen(self.forward, query, keys, values, scaling)

    def _chosen(
        self,
        forward: PackedForward,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scaling: float,
    ) -> _Rows:
        """The rows in the fastest way, or in one that is tried."""
        kind = forward.kinds[self.index]
        length = kind.kv_length
        call = Call(kind, query, keys.narrow(2, 0, length), values.narrow(2, 0, length), 0.0, scaling)
        choice = forward.choice(self.index, call)
        way = choice.best or choice.next()
        forward.used.add(way.name)
        rows: _Rows
        if way.name == Looped.name:
            rows = _LoopedRows(self.ends, kind.table, query, keys)
        elif way.name == Masked.name:
            rows = _MaskedRows(forward.spans, kind, query, keys)
        else:
            rows = _OtherRows(partial(_attended, way, kind), self.index, length, query, keys)
        return rows if choice.best else _TriedRows(rows, choice, way)


def _attended(
    way: Way, kind: PackedKind, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, scaling: float
) -> tuple[torch.Tensor, None]:
    """What an attention function returns."""
    return way.attend(Call(kind, query, key, value, 0.0, scaling)), None


class _Rows(Protocol):
    """How rows attend.

    Attributes:
        ends, heads: as `loops.rotate_and_store` takes them.
        bits: of the folded queries.
    """

    ends: np.ndarray
    heads: Heads
    bits: np.ndarray

    def attend(self, keys: torch.Tensor, values: torch.Tensor, scaling: float) -> torch.Tensor:
        """[1, T, S * G * D] of the folded queries.

        Args:
            keys, values: [1, S, total, D], all slots.
        """


class _LoopedRows:
    """Rows that attend in the loop.

    Args:
        ends: of each row's nodes.
        query: as of `_MaskedRows`.
        keys: [1, S, total, D]
    """

    def __init__(self, ends: Sequence[int], table: RowTable, query: torch.Tensor, keys: torch.Tensor) -> None:
        _, stored, total, size = keys.shape
        self._table, self.ends, self.heads = table, np.array(ends), Heads(stored, stored, size)
        self._queries = query.new_empty(query.numel())
        self.bits = bits_of(self._queries)
        self._loop_heads = LoopHeads(stored, query.shape[1] // stored, size, total * size)

    def attend(self, keys: torch.Tensor, values: torch.Tensor, scaling: float) -> torch.Tensor:
        """As `_Rows.attend`."""
        found = self._table.attend(self._queries, keys.view(-1), values.view(-1), self._loop_heads, scaling)
        return found.view(1, self.ends[-1], -1)


class _MaskedRows:
    """Rows that attend one by one, with a mask over all of a row's keys.

    Args:
        spans: of each row's nodes.
        query: [1, S * G, T, D] like those of every layer.
        keys: [1, S, total, D]
    """

    def __init__(
        self, spans: Sequence[tuple[int, int]], kind: PackedKind, query: torch.Tensor, keys: torch.Tensor
    ) -> None:
        _, count, nodes, size = query.shape
        stored = keys.shape[1]
        group = count // stored
        self.ends, self.heads = np.array([end for _, end in spans]), Heads(stored, stored, size)
        folded = query.new_empty(nodes * count * size)
        self.bits = bits_of(folded)
        self._output = query.new_empty(1, nodes, count * size)
        parts = self._output.view(nodes, stored, group, size)
        self._queries = [
            folded[first * count * size : end * count * size].view(1, stored, (end - first) * group, size)
            for first, end in spans
        ]
        self._goals = [parts[first:end].permute(1, 0, 2, 3) for first, end in spans]
        self._masks = [mask.folded(group, query) for mask in kind.masks]
        self._keys = [(begin, end - begin) for begin, end in kind.spans]

    def attend(self, keys: torch.Tensor, values: torch.Tensor, scaling: float) -> torch.Tensor:
        """As `_Rows.attend`."""
        for query, span, mask, goal in zip(self._queries, self._keys, self._masks, self._goals, strict=True):
            seen = keys.narrow(2, *span), values.narrow(2, *span)
            goal.copy_(scaled_dot_product_attention(query, *seen, mask, scale=scaling).view(goal.shape))
        return self._output


class _OtherRows:
    """Rows that attend as an attention function does; further arguments as of `_MaskedRows`.

    Args:
        attend: transformers' kind of function.
        index: of the mask kind.
        length: tokens of the flat keys and values that it takes.
    """

    def __init__(
        self, attend: Callable[..., Any], index: int, length: int, query: torch.Tensor, keys: torch.Tensor
    ) -> None:
        _, count, nodes, size = query.shape
        self.ends, self.heads = np.array([nodes]), Heads(count, keys.shape[1], size)
        self._query = query.new_empty(1, count, nodes, size)
        self.bits = bits_of(self._query)
        self._attend, self._mask = attend, stand_in(index, nodes, query.dtype, query.device)
        self._length = length

    def attend(self, keys: torch.Tensor, values: torch.Tensor, scaling: float) -> torch.Tensor:
        """As `_Rows.attend`."""
        seen = keys.narrow(2, 0, self._length), values.narrow(2, 0, self._length)
        found, _ = self._attend(self._query, *seen, self._mask, scaling=scaling)
        return found.reshape(1, found.shape[1], -1)


class _TriedRows:
    """Rows of a way that is tried: its time is noted in every layer."""

    def __init__(self, rows: _Rows, choice: Choice[Way], way: Way) -> None:
        self._rows, self._choice, self._way = rows, choice, way
        self.ends, self.heads, self.bits = rows.ends, rows.heads, rows.bits

    def attend(self, keys: torch.Tensor, values: torch.Tensor, scaling: float) -> torch.Tensor:
        """As `_Rows.attend`."""
        return timed(self._choice, self._way, lambda: self._rows.attend(keys, values, scaling))
