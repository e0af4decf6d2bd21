"""Attention of a fused decoder: queries and keys are rotated, folded and stored in one loop, then each row attends.

T nodes of all rows, t of one; S heads of keys and values, each for G query heads; D head size.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from lade.target.fused.bits import bits_of
from lade.target.fused.loops import ROTATE, Heads
from lade.target.fused.plan import Layer
from lade.target.layers import TreeLayer
from lade.target.rowattention import PackedForward, RootForward, stand_in
from lade.target.ways import Call, Masked

Forward = PackedForward | RootForward


class KindRows:
    """The rows of a forward in layers of one mask kind.

    Args:
        index: of the kind.
        places: [T] of the nodes in the buffers.
        cosines, sines: [T, D / 2] of the nodes' positions.
    """

    def __init__(
        self, forward: Forward, index: int, places: list[int], cosines: torch.Tensor, sines: torch.Tensor
    ) -> None:
        self.forward, self.index = forward, index
        self._places, self._short = np.array(places, np.int64), cosines.dtype is torch.bfloat16
        self._cosines, self._sines = bits_of(cosines), bits_of(sines)
        self._rows: _Rows | None = None

    def attend(
        self, layer: Layer, own: TreeLayer, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """[1, T, S * G * D] of one layer.

        Args:
            own: its keys and values.
            query: [1, T, S * G * D] products.
            key, value: [1, T, S * D] products.
        """
        heads = (1, len(self._places), -1, layer.size)
        keys, values = own.buffers(key.view(heads).transpose(1, 2), value.view(heads).transpose(1, 2))
        if self._rows is None:
            self._rows = self._made(query.view(heads).transpose(1, 2), keys, values, layer.scaling)
        rows = self._rows
        ROTATE(
            *(bits_of(query), bits_of(key), bits_of(value), self._cosines, self._sines, self._places),
            *(rows.ends, rows.heads, self._short, rows.bits, bits_of(keys), bits_of(values)),
        )
        return rows.attend(keys, values, layer.scaling)

    def _made(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float) -> _Rows:
        """What the layers share: their shapes are equal."""
        if isinstance(self.forward, PackedForward):
            length = self.forward.kinds[self.index].kv_length
            seen = keys.narrow(2, 0, length), values.narrow(2, 0, length)
            call = Call(self.forward.kinds[self.index], query, *seen, 0.0, scaling)
            if self.forward.masks_alone(self.index, call):
                return _MaskedRows(self.forward, self.index, query, keys.shape[1])
        return _OtherRows(self.forward, self.index, query, keys.shape[1])


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


class _MaskedRows:
    """Rows that attend one by one, with a mask over all of a row's keys.

    Args:
        query: [1, S * G, T, D] like those of every layer.
        stored: S
    """

    def __init__(self, forward: PackedForward, index: int, query: torch.Tensor, stored: int) -> None:
        _, count, nodes, size = query.shape
        group, kind = count // stored, forward.kinds[index]
        forward.used.add(Masked.name)
        self.ends, self.heads = np.array([end for _, end in forward.spans]), Heads(stored, stored, size)
        folded = query.new_empty(nodes * count * size)
        self.bits = bits_of(folded)
        self._output = query.new_empty(1, nodes, count * size)
        parts = self._output.view(nodes, stored, group, size)
        self._queries = [
            folded[first * count * size : end * count * size].view(1, stored, (end - first) * group, size)
            for first, end in forward.spans
        ]
        self._goals = [parts[first:end].permute(1, 0, 2, 3) for first, end in forward.spans]
        self._masks = [mask.folded(group, query) for mask in kind.masks]
        self._keys = [(begin, end - begin) for begin, end in kind.spans]

    def attend(self, keys: torch.Tensor, values: torch.Tensor, scaling: float) -> torch.Tensor:
        """As `_Rows.attend`."""
        for query, span, mask, goal in zip(self._queries, self._keys, self._masks, self._goals, strict=True):
            seen = keys.narrow(2, *span), values.narrow(2, *span)
            goal.copy_(scaled_dot_product_attention(query, *seen, mask, scale=scaling).view(goal.shape))
        return self._output


class _OtherRows:
    """Rows that attend as the forward chooses; arguments as of `_MaskedRows`."""

    def __init__(self, forward: Forward, index: int, query: torch.Tensor, stored: int) -> None:
        _, count, nodes, size = query.shape
        kind = forward.kinds[index]
        self.ends, self.heads = np.array([nodes]), Heads(count, stored, size)
        self._query = query.new_empty(1, count, nodes, size)
        self.bits = bits_of(self._query)
        self._forward, self._mask = forward, stand_in(index, nodes, query.dtype, query.device)
        self._length = kind[1] if isinstance(kind, tuple) else kind.kv_length

    def attend(self, keys: torch.Tensor, values: torch.Tensor, scaling: float) -> torch.Tensor:
        """As `_Rows.attend`."""
        seen = keys.narrow(2, 0, self._length), values.narrow(2, 0, self._length)
        found, _ = self._forward.attend(self._query, *seen, self._mask, scaling=scaling)
        return found.reshape(1, found.shape[1], -1)
