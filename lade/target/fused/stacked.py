"""The layers of a plan in one call (`lade.target.fused.stack`): where they may be, and what the call takes.

T tokens of a forward; S heads of keys and values, each for G query heads; D head size.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np
import torch

from lade.base.buffers import GrowingBuffers
from lade.base.compiled import viewed
from lade.base.threads import FORK, counters, threads_for
from lade.target.cache import TreeCache
from lade.target.fused.attention import KindRows
from lade.target.fused.bits import bits_of
from lade.target.fused.linear import TOKENS, FewTokens
from lade.target.fused.plan import Layer, Norm, Plan
from lade.target.fused.stack import COMPUTE, ELEMENTS, LayerArrays, Nodes, Room
from lade.target.layers import TreeLayer
from lade.target.looped import LONGEST, MOST_NODES
from lade.target.rowloops import Heads, scratch_for

PRODUCTS = "query", "key", "value", "output", "gate", "up", "down"
WITH_BIAS = "query", "key", "value"
NORMS = "before", "after", "query_norm", "key_norm"
EPSILONS, SLOTS = 4, 2  # arrays of a layer before its epsilons, and those of its keys and values at the end
VECTOR = 16  # float32 of a vector; one that crosses lines of the cache takes longer to load
MANY = 1 << 40  # operations, which are worth all threads
NONE = torch.empty(0, dtype=torch.float32, device="cpu")


class Stack:
    """The layers of a plan, for forwards of few tokens.

    Args:
        plan: whose products are all `FewTokens`, and have no bias but those of queries, keys and values.
    """

    def __init__(self, plan: Plan, cache: TreeCache) -> None:
        self._cache, self._scaling = cache, np.float32(plan.layers[0].scaling)
        self._table = _Table([_tensors(layer) for layer in plan.layers], [_epsilons(layer) for layer in plan.layers])
        first: Any = plan.layers[0]
        self._hidden, self._inner = first.query.weight.shape[1], len(first.gate.weight)
        self._across, self._stored, self._size = len(first.query.weight), len(first.key.weight), first.size
        self._shape = len(plan.layers), self._hidden, self._inner, self._across, self._stored, self._size
        self._memory = GrowingBuffers(_memory, 1)

    @classmethod
    def of(cls, plan: Plan, cache: TreeCache, kinds: int) -> Stack | None:
        """`None` where there can be none.

        Args:
            kinds: of masks.
        """
        products = [(name, getattr(layer, name)) for layer in plan.layers for name in PRODUCTS]
        if kinds != 1 or not products:
            return None
        whole = all(isinstance(each, FewTokens) and (each.bias is None or name in WITH_BIAS) for name, each in products)
        return cls(plan, cache) if whole else None

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
        floats, bits = self._room(tokens, len(scratch))
        nodes = Nodes(rows.cosines, rows.sines, rows.places, np.array(rows.ends), table.rows, table.visible)
        _compute(threads, self._table, heads, self._scaling, nodes, states, (floats, bits))
        return torch.from_numpy(floats.added).view(states.shape)

    def _heads(self, tokens: int) -> Heads:
        """Of attention; the table knows the slots' keys and values afterwards."""
        like = NONE.new_empty(1, self._stored // self._size, tokens, self._size)
        layers: list[TreeLayer] = self._cache.layers
        buffers = [layer.buffers(like, like) for layer in layers[: self._table.number]]
        self._table.point([*chain.from_iterable(buffers)])
        _, stored, total, size = buffers[0][0].shape
        return Heads(stored, self._across // self._stored, size, total * size)

    def _room(self, tokens: int, scratch: int) -> tuple[Room, Room]:
        widths = (
            *(self._hidden, self._hidden, self._across, self._across, self._across),
            *(self._stored, self._stored, self._inner, self._inner),
        )
        sizes = [*(tokens * width for width in widths), max(self._hidden, self._size), scratch]
        return _rooms(self._memory.of(_numbers_for(sizes)), sizes)


class _Table:
    """The arrays of all layers, as `layer_at` takes them.

    Args:
        tensors: of each layer all but its epsilons, keys and values, in the order of `LayerArrays`.
        epsilons: [4] of each layer.
    """

    def __init__(self, tensors: Sequence[Sequence[torch.Tensor]], epsilons: Sequence[np.ndarray]) -> None:
        self.number, self._tensors, self._where = len(tensors), [*chain.from_iterable(tensors)], list[int]()
        self._fixed = [[_numbers(tensor) for tensor in own] for own in tensors]
        for own, numbers in zip(self._fixed, epsilons, strict=True):
            own.insert(EPSILONS, numbers)
        self._slots: list[np.ndarray] = []
        self._typed = np.zeros((self.number, len(ELEMENTS), 2), np.int64)
        self._typed[:, :-SLOTS] = [[*map(_place, own)] for own in self._fixed]
        self._known = _addresses(self._tensors)

    @property
    def holds(self) -> bool:
        """Whether everything that the table was made of lies where it lay."""
        return _addresses(self._tensors) == self._known

    def point(self, slots: Sequence[torch.Tensor]) -> None:
        """Keys and values of each layer, as they are stored now."""
        where = _addresses(slots)
        if where != self._where:
            self._slots = [*map(_numbers, slots)]
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
            found.append(viewed(LayerArrays(*[array.view(kind) for array, kind in zip(arrays, ELEMENTS, strict=True)])))
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
    COMPUTE(FORK, threads, counters(), table, table.number, heads, scaling, nodes, bits_of(states), *room)


def _addresses(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def _numbers(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().numpy().reshape(-1)


def _place(array: np.ndarray) -> tuple[int, int]:
    """Its address, and its number of elements."""
    return array.ctypes.data, array.size


def _tensors(layer: Layer) -> list[torch.Tensor]:
    """All arrays of a layer but its epsilons, keys and values."""
    norms: list[Norm | None] = [getattr(layer, name) for name in NORMS]
    products: list[Any] = [getattr(layer, name) for name in PRODUCTS]
    biases: list[torch.Tensor | None] = [getattr(layer, name).bias for name in WITH_BIAS]
    factors = [NONE if norm is None else norm.weight for norm in norms]
    return [*factors, *(each.weight for each in products), *(NONE if bias is None else bias for bias in biases)]


def _epsilons(layer: Layer) -> np.ndarray:
    norms: list[Norm | None] = [getattr(layer, name) for name in NORMS]
    return np.array([0 if norm is None else norm.epsilon for norm in norms], np.float32)


def _memory(numbers: int) -> tuple[np.ndarray, np.ndarray]:
    """So many float32, which begin where a vector of the processor may, and the same memory as bits."""
    floats = torch.empty(numbers, dtype=torch.float32, device="cpu").numpy()
    return floats, floats.view(np.uint32)


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
    weight, norm, slots = torch.zeros(4), torch.zeros(2), torch.zeros(2)
    table = _Table([[norm, norm, NONE, NONE, *[weight] * 7, NONE, NONE, NONE]], [np.ones(4, np.float32)])
    table.point([slots, slots.clone()])
    bits, place, row = np.zeros(1, np.uint32), np.zeros(1, np.int64), np.array([0, 1, 0, 1, 0, 1, 0])
    nodes = Nodes(bits, bits, place, place + 1, row, np.zeros(0, np.uint8))
    sizes = [2] * 10 + [len(scratch_for(1, 2, 1))]
    _compute(
        1, table, Heads(1, 1, 2, 2), np.float32(1), nodes, norm.clone(), _rooms(_memory(_numbers_for(sizes)), sizes)
    )
