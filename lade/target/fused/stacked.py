"""The layers of a plan in one call (`lade.target.fused.stack`): where they may be, and what the call takes.

T tokens of a forward; S heads of keys and values, each for G query heads; D head size.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, chain
from typing import Any

import numpy as np
import torch

from lade.base.bits import SHORT_BYTES, bits_of, tensor_of
from lade.base.buffers import GrowingBuffers
from lade.base.compiled import viewed
from lade.base.threads import FORK, counters, threads_for
from lade.target.cache import TreeCache
from lade.target.fused.attention import KindRows
from lade.target.fused.linear import TOKENS, FewBlocks, FewTokens
from lade.target.fused.plan import Layer, Norm, Plan
from lade.target.fused.stack import (
    COMPUTE,
    ELEMENTS,
    MIXED,
    PLAIN,
    SHORT,
    LayerArrays,
    Nodes,
    Room,
)
from lade.target.layers import TreeLayer
from lade.target.looped import LONGEST, MOST_NODES
from lade.target.rowloops import Heads, scratch_for
from lade.weights.blocks import LINES

PRODUCTS = "query", "key", "value", "output", "gate", "up", "down"
WITH_BIAS = "query", "key", "value"
NORMS = "before", "after", "query_norm", "key_norm"
EPSILONS, SLOTS = 4, 2  # arrays of a layer before its epsilons, and those of its keys and values at the end
VECTOR = 16  # float32 of a vector; one that crosses lines of the cache takes longer to load
MANY = 1 << 40  # operations, which are worth all threads

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
        first: Any = plan.layers[0]
        self._hidden, self._inner = first.query.weight.shape[1], len(first.gate.weight)
        self._across, self._stored, self._size = len(first.query.weight), len(first.key.weight), first.size
        widths = self._hidden, self._inner, self._across, self._stored, self._size
        self.kind = self._table.kind.dtype
        self._shape = self.kind, len(plan.layers), *widths
        self._memory = GrowingBuffers(partial(_memory, plan.dtype is torch.bfloat16), 1)

    @classmethod
    def of(cls, plan: Plan, cache: TreeCache, kinds: int) -> Stack | None:
        """`None` where there can be none.

        Args:
            kinds: of masks.
        """
        products: list[tuple[str, Any]] = [(name, getattr(each, name)) for each in plan.layers for name in PRODUCTS]
        if kinds != 1 or {type(each) for _, each in products} not in ({FewTokens}, {FewBlocks}):
            return None
        return cls(plan, cache) if all(each.bias is None or name in WITH_BIAS for name, each in products) else None

    def fits(self, rows: KindRows) -> bool:
        """Whether a forward is small enough, its attention may be the loop's, and weights lie where they lay."""
        if len(rows.places) > MOST_NODES or not rows.may_loop or not self._table.holds:
            return False
        return max(end - begin for begin, end in rows.spans) <= LONGEST

    def shape_of(self, rows: KindRows) -> tuple[object, ...]:
        """Forwards of one shape take about the same time."""
        keys = sum(end - begin for begin, end in rows.spans)
        return *self._shape, bisect_left(TOKENS, len(rows.places)), keys.bit_length()

    def compute(self, states: torch.Tensor, rows: KindRows) -> torch.Tensor:
        """What the last layer adds to the residual stream, [1, T, M] like this.

        Args:
            states: the token embeddings; afterwards the residual stream before that.
        """
        table, tokens = rows.table, len(rows.places)
        heads = self._heads(tokens)
        threads = threads_for(MANY)
        scratch = scratch_for(table.most, self._size, threads)
        floats, bits = self._room(tokens, threads, len(scratch))
        nodes = Nodes(rows.cosines, rows.sines, rows.places, np.array(rows.ends), table.rows, table.visible)
        _compute(threads, self._table, heads, self._scaling, nodes, states, (floats, bits))
        return tensor_of(bits.added).view(states.shape)

    def _heads(self, tokens: int) -> Heads:
        """Of attention; the table knows the slots' keys and values afterwards."""
        like = torch.empty(1, self._stored // self._size, tokens, self._size, dtype=self._dtype, device="cpu")
        layers: list[TreeLayer] = self._cache.layers
        buffers = [layer.buffers(like, like) for layer in layers[: self._table.number]]
        self._table.point([*chain.from_iterable(buffers)])
        _, stored, total, size = buffers[0][0].shape
        return Heads(stored, self._across // self._stored, size, total * size)

    def _room(self, tokens: int, threads: int, scratch: int) -> tuple[Room, Room]:
        widths = (
            *(self._hidden, self._hidden, self._across, self._across, self._across),
            *(self._stored, self._stored, self._inner, self._inner),
        )
        sums = 0 if self.kind == PLAIN else threads * tokens * LINES
        sizes = [*(tokens * width for width in widths), sums, max(self._hidden, self._size), scratch]
        return _rooms(self._memory.of(_numbers_for(sizes)), sizes)


class _Table:
    """The arrays of all layers, as `layer_at` takes them.

    Args:
        parts: of each layer all but its epsilons, keys and values, in the order of `LayerArrays`.
        epsilons: [4] of each layer.

    Attributes:
        kind: empty; tells what layers are made of (`ELEMENTS`).
    """

    def __init__(self, parts: Sequence[Sequence[Part]], epsilons: Sequence[np.ndarray]) -> None:
        self.number, self._where, self._parts = len(parts), list[int](), parts
        self._tensors = [part for part in chain.from_iterable(parts) if isinstance(part, torch.Tensor)]
        self._fixed = [[*map(_bits, own)] for own in parts]
        for own, numbers in zip(self._fixed, epsilons, strict=True):
            own.insert(EPSILONS, numbers)
        self._slots: list[np.ndarray] = []
        self.kind = np.empty(0, _kind_of(self._fixed[0]))
        self._typed = np.zeros((self.number, len(LayerArrays._fields), 2), np.int64)
        self._typed[:, :-SLOTS] = [[*map(_place, own)] for own in self._fixed]
        self._known = _addresses(self._tensors)

    @property
    def holds(self) -> bool:
        """Whether everything that the table was made of lies where it lay; packed weights do as long as they live."""
        return _addresses(self._tensors) == self._known

    def point(self, slots: Sequence[torch.Tensor]) -> None:
        """Keys and values of each layer, as they are stored now."""
        where = _addresses(slots)
        if where != self._where:
            self._slots = [*map(bits_of, slots)]
            self._typed[:, -SLOTS:] = np.array([*map(_place, self._slots)]).reshape(self.number, SLOTS, 2)
            self._where = where

    def typed(self) -> np.ndarray:
        """For machine code."""
        return self._typed.reshape(-1)

    def viewed(self) -> list[LayerArrays]:
        """For the functions as Python."""
        found = []
        for layer, own in enumerate(self._fixed):
            arrays = [*own, *self._slots[layer * SLOTS : (layer + 1) * SLOTS]]
            kinds = ELEMENTS[self.kind.dtype.str[1:]]
            found.append(viewed(LayerArrays(*[array.view(kind) for array, kind in zip(arrays, kinds, strict=True)])))
        return found


def _compute(
    threads: int,
    table: _Table,
    heads: Heads,
    scaling: np.float32,
    nodes: Nodes,
    states: torch.Tensor,
    room: tuple[Room, Room],
) -> None:
    short = states.dtype is torch.bfloat16
    layers = table, table.number, table.kind
    COMPUTE(FORK, threads, counters(), *layers, heads, scaling, short, nodes, bits_of(states), *room)


def _addresses(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def _kind_of(arrays: Sequence[np.ndarray]) -> str:
    """What a layer is made of (`ELEMENTS`)."""
    if arrays[0].itemsize == SHORT_BYTES:
        return SHORT
    return MIXED if arrays[EPSILONS + 1].itemsize == SHORT_BYTES else PLAIN


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


def _memory(short: bool, numbers: int) -> tuple[np.ndarray, np.ndarray]:
    """So many float32, which begin where a vector of the processor may, and as many bits: the same memory, if not
    short."""
    floats = torch.empty(numbers, dtype=torch.float32, device="cpu").numpy()
    return floats, np.empty(numbers, np.uint16) if short else floats.view(np.uint32)


def _begins(sizes: Sequence[int]) -> Iterator[int]:
    """Where arrays of these sizes begin, each where a vector may, and where they end."""
    return accumulate((-(-size // VECTOR) * VECTOR for size in sizes), initial=0)


def _numbers_for(sizes: Sequence[int]) -> int:
    *_, end = _begins(sizes)
    return end


def _rooms(memory: tuple[np.ndarray, np.ndarray], sizes: Sequence[int]) -> tuple[Room, Room]:
    """Arrays of these sizes, as numbers and as bits."""
    spans = [slice(begin, begin + size) for begin, size in zip(_begins(sizes), sizes, strict=False)]
    floats, bits = (Room(*[part[span] for span in spans]) for part in memory)
    return floats, bits


def exercise() -> None:
    """Make the call with the arguments that decoding gives it: one layer, one token."""
    place, row = np.zeros(1, np.int64), np.array([0, 1, 0, 1, 0, 1, 0])
    full, half = torch.float32, torch.bfloat16
    for dtype, kept, numbers in ((full, full, 4), (full, half, 2 * LINES), (half, half, 2 * LINES)):
        norm, none = (torch.zeros(size, dtype=dtype, device="cpu") for size in (2, 0))
        weight = torch.zeros(numbers, dtype=kept, device="cpu")
        table = _Table([[norm, norm, none, none, *[weight] * 7, none, none, none]], [np.ones(4, np.float32)])
        table.point([norm.clone(), norm.clone()])
        angle = bits_of(norm[:1])
        nodes = Nodes(angle, angle, place, place + 1, row, np.zeros(0, np.uint8))
        sizes = [2] * 9 + [LINES, 2, len(scratch_for(1, 2, 1))]
        room = _rooms(_memory(dtype is half, _numbers_for(sizes)), sizes)
        _compute(1, table, Heads(1, 1, 2, 2), np.float32(1), nodes, norm.clone(), room)
