"""The layers of a plan in one call (`lade.target.fused.stack`): where they may be, and what the call takes.

T tokens of a forward, A asked ones; M hidden size; S heads of keys and values, each for G query heads; D head size.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import chain
from typing import Any, cast
from weakref import ReferenceType, ref

import numpy as np
import torch
from torch import nn

from lade.base.bits import SHORT_BYTES, addresses, bits_of
from lade.base.compiled import viewed
from lade.base.threads import FORK, counters, threads_for
from lade.target.cache import TreeCache
from lade.target.fused.attention import KindRows
from lade.target.fused.layerarrays import ELEMENTS, MIXED, PLAIN, SHORT, LayerArrays, Nodes, Room
from lade.target.fused.linear import TOKENS, FewBlocks, FewTokens
from lade.target.fused.plan import Layer, Norm, Plan
from lade.target.fused.rooms import Rooms
from lade.target.fused.stack import COMPUTE
from lade.target.fused.watch import part_of
from lade.target.layers import TreeLayer
from lade.target.looped import LONGEST
from lade.target.queryloops import Heads
from lade.target.rowloops import numbers_for
from lade.weights.blocks import LINES

PRODUCTS = "query", "key", "value", "output", "gate", "up", "down"
WITH_BIAS = "query", "key", "value"
MOST_NODES = 64  # of a forward
NORMS = "before", "after", "query_norm", "key_norm"
NORMED, SLOTS = 4, 2  # arrays of a layer: factors of norms at the start, then epsilons; keys and values at the end
MANY = 1 << 40  # operations, which are worth all threads
FEW_KEYS = 1 << 8  # for rows of fewer keys, there is as much room as for so many

Part = torch.Tensor | FewBlocks


class Stack:
    """The layers of a plan, for forwards of few tokens.

    Args:
        plan: whose weights are all read as they lie, and have no bias but those of queries, keys and values.

    Attributes:
        kind: what layers are made of (`ELEMENTS`).
    """

    def __init__(self, plan: Plan, cache: TreeCache) -> None:
        self._cache, self._scaling, self._dtype = cache, np.float32(plan.layers[0].scaling), plan.dtype
        self._table = _Table([_parts(layer) for layer in plan.layers], [_epsilons(layer) for layer in plan.layers])
        self._embedding, self._norm = plan.embedding, plan.norm
        self._lines = _lines(plan.embedding)
        first: Any = plan.layers[0]
        self._hidden, self._inner = first.query.weight.shape[1], len(first.gate.weight)
        self._across, self._stored, self._size = len(first.query.weight), len(first.key.weight), first.size
        widths = self._hidden, self._inner, self._across, self._stored, self._size
        self.kind = self._table.kind.dtype
        self._shape = self.kind, len(plan.layers), *widths
        self._rooms = Rooms(plan.dtype is torch.bfloat16)
        self._known = Heads(0, 0, 0, 0)

    @classmethod
    def of(cls, plan: Plan, cache: TreeCache, kinds: int) -> Stack | None:
        """`None` where there can be none.

        Args:
            kinds: of masks.
        """
        products: list[tuple[str, Any]] = [(name, getattr(each, name)) for each in plan.layers for name in PRODUCTS]
        if kinds != 1 or {type(each) for _, each in products} not in ({FewTokens}, {FewBlocks}):
            return None
        if not plan.embedding.weight.is_contiguous():
            return None
        return cls(plan, cache) if all(each.bias is None or name in WITH_BIAS for name, each in products) else None

    def fits(self, rows: KindRows, share: int | None) -> bool:
        """Whether a forward is small enough, its attention may be the loop's, and weights lie where they lay.

        Args:
            share: of the weights, that is looked at (`Watch.holds`).
        """
        if len(rows.places) > MOST_NODES or not rows.may_loop or not self._table.holds(share):
            return False
        return max(end - begin for begin, end in rows.spans) <= LONGEST

    def shape_of(self, rows: KindRows) -> tuple[object, ...]:
        """Forwards of one shape take about the same time."""
        keys = sum(end - begin for begin, end in rows.spans)
        return *self._shape, bisect_left(TOKENS, len(rows.places)), keys.bit_length()

    def compute(self, ids: torch.Tensor, rows: KindRows, asked: torch.Tensor | None) -> torch.Tensor:
        """[1, A, M] states that the head takes.

        Args:
            ids: [1, T]
            asked: [A]; `None` for all.
        """
        table, tokens = rows.table, len(rows.places)
        heads, threads = self._heads(tokens), threads_for(MANY)
        room = self._room(tokens, threads, table.most)
        self._embed(ids, room[1].states)
        chosen = np.arange(tokens) if asked is None else asked.numpy()
        nodes = Nodes(rows.cosines, rows.sines, rows.places, np.array(rows.ends), table.rows, table.visible, chosen)
        found = torch.empty(1, len(chosen), self._hidden, dtype=self._dtype, device="cpu")
        _compute(threads, self._table, heads, self._scaling, nodes, self._norm, room, found)
        return found

    def _embed(self, ids: torch.Tensor, states: np.ndarray) -> None:
        """Token embeddings to [T * M] bits."""
        numbers = ids.numpy().reshape(-1)
        if numbers.view(np.uint64).max() >= len(self._lines):
            self._embedding(ids)  # raises the model's own error
        self._lines.take(numbers, 0, states.reshape(len(numbers), -1), "clip")

    def _heads(self, tokens: int) -> Heads:
        """Of attention; the table knows the slots' keys and values afterwards."""
        layers: list[TreeLayer] = self._cache.layers[: self._table.number]
        if not self._table.points_at([kept for layer in layers for kept in (layer.keys, layer.values)]):
            like = torch.empty(1, self._stored // self._size, tokens, self._size, dtype=self._dtype, device="cpu")
            buffers = [layer.buffers(like, like) for layer in layers]
            self._table.point([*chain.from_iterable(buffers)])
            _, stored, total, size = buffers[0][0].shape
            self._known = Heads(stored, self._across // self._stored, size, total * size)
        return self._known

    def _room(self, tokens: int, threads: int, keys: int) -> tuple[Room, Room]:
        widths = (
            *(self._hidden, self._hidden, self._hidden, self._across, self._across, self._across),
            *(self._stored, self._stored, self._inner, self._inner),
        )
        sums = 0 if self.kind == PLAIN else threads * tokens * LINES
        scratch = numbers_for(max(FEW_KEYS, 1 << (keys - 1).bit_length()), self._size, threads)
        return self._rooms.of(*(tokens * width for width in widths), sums, max(self._hidden, self._size), scratch)


class _Table:
    """The arrays of all layers, as `layer_at` takes them.

    Args:
        parts: of each layer all but its epsilons, keys and values, in the order of `LayerArrays`.
        epsilons: [4] of each layer.

    Attributes:
        kind: empty; tells what layers are made of (`ELEMENTS`).
    """

    def __init__(self, parts: Sequence[Sequence[Part]], epsilons: Sequence[np.ndarray]) -> None:
        self.number, self._parts = len(parts), parts
        self._tensors = [part for own in parts for part in own[NORMED:] if isinstance(part, torch.Tensor) and len(part)]
        self._fixed = [[*map(_bits, own)] for own in parts]
        for own, numbers in zip(self._fixed, epsilons, strict=True):
            own.insert(NORMED, numbers)
        self._slots: list[ReferenceType[torch.Tensor]] = []  # weak, so that slots that close free their memory
        self.kind = np.empty(0, _kind_of(self._fixed[0]))
        self._typed = np.zeros((self.number, len(LayerArrays._fields), 2), np.int64)
        self._typed[:, :-SLOTS] = [[*map(_place, own)] for own in self._fixed]
        self._where, self._held = addresses(self._tensors), True

    def holds(self, share: int | None) -> bool:
        """Whether weights and biases lie where they lay. Packed ones do as long as they live; a plan knows of norms."""
        part = part_of(share if self._held else None)
        self._held = addresses(self._tensors[part]) == self._where[part]
        return self._held

    def points_at(self, slots: Sequence[torch.Tensor | None]) -> bool:
        """Whether these are the keys and values of each layer that the table knows."""
        if len(slots) != len(self._slots):
            return False
        return all(own is not None and known() is own for known, own in zip(self._slots, slots, strict=True))

    def point(self, slots: Sequence[torch.Tensor]) -> None:
        """Keys and values of each layer, as they are stored now."""
        places = [(slot.data_ptr(), slot.numel()) for slot in slots]
        self._typed[:, -SLOTS:] = np.array(places).reshape(self.number, SLOTS, 2)
        self._slots = [*map(ref, slots)]

    def typed(self) -> np.ndarray:
        """For machine code."""
        return self._typed.reshape(-1)

    def viewed(self) -> list[LayerArrays]:
        """For the functions as Python."""
        found, slots = [], [bits_of(cast("torch.Tensor", slot())) for slot in self._slots]
        for layer, own in enumerate(self._fixed):
            arrays = [*own, *slots[layer * SLOTS : (layer + 1) * SLOTS]]
            kinds = ELEMENTS[self.kind.dtype.str[1:]]
            found.append(viewed(LayerArrays(*[array.view(kind) for array, kind in zip(arrays, kinds, strict=True)])))
        return found


def _compute(
    threads: int,
    table: _Table,
    heads: Heads,
    scaling: np.float32,
    nodes: Nodes,
    last: Norm,
    room: tuple[Room, Room],
    found: torch.Tensor,
) -> None:
    layers, norm = (table, table.number, table.kind), (last.bits, last.epsilon)
    COMPUTE(FORK, threads, counters(), *layers, heads, scaling, nodes, *norm, *room, bits_of(found))


def _lines(embedding: nn.Embedding) -> np.ndarray:
    """[V, M] bits of its weight."""
    found: np.ndarray = bits_of(embedding.weight.detach()).reshape(embedding.weight.shape)
    return found


def _kind_of(arrays: Sequence[np.ndarray]) -> str:
    """What a layer is made of (`ELEMENTS`)."""
    if arrays[0].itemsize == SHORT_BYTES:
        return SHORT
    return MIXED if arrays[NORMED + 1].itemsize == SHORT_BYTES else PLAIN


def _bits(part: Part) -> np.ndarray:
    found: np.ndarray = part.blocks if isinstance(part, FewBlocks) else bits_of(part.detach())
    return found


def _place(array: np.ndarray) -> tuple[int, int]:
    """Its address, and its number of elements."""
    return array.ctypes.data, array.size


def _parts(layer: Layer) -> list[Part]:
    """All of a layer but its epsilons, keys and values."""
    norms: list[Norm | None] = [getattr(layer, name) for name in NORMS]
    products: list[Any] = [getattr(layer, name) for name in PRODUCTS]
    biases: list[torch.Tensor | None] = [getattr(layer, name).bias for name in WITH_BIAS]
    none = layer.before.weight.new_empty(0)
    factors = [none if norm is None else norm.weight for norm in norms]
    weights = [each if isinstance(each, FewBlocks) else each.weight for each in products]
    return [*factors, *weights, *(none if bias is None else bias for bias in biases)]


def _epsilons(layer: Layer) -> np.ndarray:
    norms: list[Norm | None] = [getattr(layer, name) for name in NORMS]
    return np.array([0 if norm is None else norm.epsilon for norm in norms], np.float32)


def exercise() -> None:
    """Make the call with the arguments that decoding gives it: one layer, one token."""
    place, row = np.zeros(1, np.int64), np.array([0, 1, 0, 1, 0, 1, 0])
    full, half = torch.float32, torch.bfloat16
    for dtype, kept, numbers in ((full, full, 4), (full, half, 2 * LINES), (half, half, 2 * LINES)):
        norm, none = (torch.zeros(size, dtype=dtype, device="cpu") for size in (2, 0))
        weight = torch.zeros(numbers, dtype=kept, device="cpu")
        table = _Table([[norm, norm, none, none, *[weight] * 7, none, none, none]], [np.ones(4, np.float32)])
        slots = [norm.clone(), norm.clone()]
        table.point(slots)
        angle = bits_of(norm[:1])
        nodes = Nodes(angle, angle, place, place + 1, row, np.zeros(0, np.uint8), place)
        room = Rooms(dtype is half).of(*[2] * 10, LINES, 2, numbers_for(1, 2, 1))
        room[1].states[:] = 0
        last = Norm(norm, 1.0)
        _compute(1, table, Heads(1, 1, 2, 2), np.float32(1), nodes, last, room, norm.clone())
