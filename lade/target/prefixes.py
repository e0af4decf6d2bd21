"""Keys and values of ended requests, kept for later requests of the same tenant whose prompts begin alike.

They are kept in chunks of tokens. A chunk is found by the chunk before it, or the tenant, and by its own tokens, which
are compared one by one: texts that begin alike share chunks, and nothing is shared across tenants. Knows the KV cache
of a target, no drafting.

L buffers of a stack, H heads, D head size.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import torch

from lade.base.locks import fork_safe_lock
from lade.facts.fingerprint import forward_state
from lade.target.cache import TreeCache
from lade.target.layers import TreeLayer
from lade.target.model import HFTarget
from lade.target.patches import patches_of
from lade.target.store import LayerGroup
from lade.target.verdicts import implementation_of

CHUNK = 64  # tokens
MARGIN = 2 * CHUNK  # tokens of sliding layers: their window ends at a chunk's end, and begins in a whole chunk
ID_BYTES = 8


@dataclass(slots=True, eq=False)
class Chunk:
    """Tokens of a text behind those of another chunk.

    Attributes:
        key: the chunk before it (the tenant for the first one), and the tokens.
        parts: per stack [L, H, CHUNK, D]; `None` where sliding layers stored these tokens no more.
    """

    key: tuple[Chunk | str, tuple[int, ...]]
    parts: list[torch.Tensor | None]

    @property
    def bytes(self) -> int:
        return CHUNK * ID_BYTES + sum(part.nbytes for part in self.parts if part is not None)


class Stack:
    """Buffers of keys or values that have one window, shape, type and device, copied together."""

    def __init__(self, group: LayerGroup) -> None:
        self.group = group
        self.buffers: list[tuple[TreeLayer, str]] = []

    def read(self, slot: int, first: int) -> torch.Tensor | None:
        """[L, H, CHUNK, D]: a copy of a slot's chunk from token `first` on; `None` where it is stored no more."""
        if first < self.group.starts[slot]:
            return None
        begin = self.group.slabs.offsets[slot] - self.group.starts[slot] + first
        return torch.stack([getattr(layer, name)[0, :, begin : begin + CHUNK] for layer, name in self.buffers])

    def write(self, slot: int, parts: Sequence[torch.Tensor]) -> None:
        """Copy chunks to the start of a slot's slab."""
        begin = self.group.slabs.offsets[slot]
        for index, (layer, name) in enumerate(self.buffers):
            rows = [part[index] for part in parts]  # [H, CHUNK, D]
            if getattr(layer, name) is None:  # given back when the last slot was closed
                setattr(layer, name, self.group.buffer_like(rows[0][None]))
            torch.cat(rows, 1, out=getattr(layer, name)[0, :, begin : begin + CHUNK * len(rows)])


@dataclass(slots=True, eq=False)
class Holding:
    """The chunks of one tenant.

    Attributes:
        chunks: by key, the least recently used first; a chunk stands before those that it follows.
        bytes: of all of them.
    """

    chunks: OrderedDict[Hashable, Chunk] = field(default_factory=OrderedDict)
    bytes: int = 0

    def add(self, chunk: Chunk) -> None:
        size = chunk.bytes  # before, so that no interrupt parts the two
        self.chunks[chunk.key] = chunk
        self.bytes += size

    def drop(self, chunk: Chunk) -> None:
        size = chunk.bytes
        del self.chunks[chunk.key]
        self.bytes -= size

    def use(self, path: Sequence[Chunk]) -> None:
        """The last chunk first, so that no chunk is dropped before those behind it."""
        for chunk in reversed(path):
            self.chunks.move_to_end(chunk.key)


class PrefixCache:
    """Chunks of texts that a target has computed.

    Where bytes are short, the tenant that holds the most of them loses its least recently used chunk: a tenant that
    holds no more than its equal share loses none to others.

    All chunks are dropped once the model computes something else than when they were made: other weights, adapters,
    hooks or configuration. `drop` may be called by any thread, everything else by the thread that steps.

    Args:
        target: with no slot open.
        capacity: the most bytes of keys, values and token ids.
    """

    def __init__(self, target: HFTarget, capacity: int) -> None:
        self.target, self.capacity = target, capacity
        self._tenants: dict[str, Holding] = {}
        self._lock = fork_safe_lock()
        self._stacks: list[Stack] = []
        self._state: Hashable = None
        self._changes = 0  # of the state
        self._opened: dict[int, tuple[str, int]] = {}  # slot -> its tenant, and the changes before it was opened
        for group in target.cache.groups.values():
            group.margin = 0 if group.window is None else MARGIN

    @property
    def bytes(self) -> int:
        """Of all chunks."""
        return sum(holding.bytes for holding in self._tenants.values())

    def restore(self, slot: int, prompt: Sequence[int], tenant: str | None, least: int = 1) -> int:
        """Fill an open, empty slot with the longest beginning of a prompt that is kept, but not with its last token.

        Args:
            least: tokens; a shorter beginning is none.

        Returns:
            The number of tokens that the slot holds; 0 without a tenant.
        """
        if tenant is None:
            return 0
        with self._lock:
            self._drop_if_changed()
            self._opened[slot] = tenant, self._changes
            return self._restore(slot, prompt, tenant, least)

    def _restore(self, slot: int, prompt: Sequence[int], tenant: str, least: int) -> int:
        chunks = self._found(prompt[:-1], tenant)
        if len(chunks) * CHUNK < least:
            return 0
        self._tenants[tenant].use(chunks)
        try:
            self._fill(slot, chunks)
        except torch.OutOfMemoryError:
            self._tenants.clear()
            return 0
        return len(chunks) * CHUNK

    def keep(self, slot: int, text: Sequence[int], tenant: str | None) -> None:
        """Keep the whole chunks of a slot's text, as many as have room.

        None without a tenant or without `restore`, and none where the tenant's chunks were dropped since.
        """
        if tenant is None:
            return
        with self._lock:
            self._drop_if_changed()
            expected = tenant, self._changes
            if self._opened.pop(slot, None) != expected or self.target.cache.lengths[slot] != len(text):
                return
            try:
                self._add(slot, text, tenant)
            except torch.OutOfMemoryError:  # decoding needs the memory more
                self._tenants.clear()

    def drop(self, tenant: str | None = None) -> None:
        """Drop a tenant's chunks (`None`: all of them). Texts that its open slots hold are not kept."""
        with self._lock:
            for each in [tenant] if tenant is not None else list(self._tenants):
                self._tenants.pop(each, None)
            self._opened = {
                slot: entry for slot, entry in self._opened.items() if tenant is not None and entry[0] != tenant
            }

    def _drop_if_changed(self) -> None:
        model = self.target.model
        state = forward_state(model), patches_of(model).key, implementation_of(model)
        if state != self._state:
            self._tenants.clear()
            self._state = state
            self._changes += 1

    def _found(self, text: Sequence[int], tenant: str) -> list[Chunk]:
        """The chunks of the longest beginning of a text of which all is kept that later tokens see."""
        if tenant not in self._tenants:
            return []
        path, chunks = list[Chunk](), self._tenants[tenant].chunks
        runs, whole = [0] * len(self._stacks), 0
        for end in range(CHUNK, len(text) + 1, CHUNK):
            chunk = chunks.get((path[-1] if path else tenant, tuple(text[end - CHUNK : end])))
            if chunk is None:
                break
            path.append(chunk)
            runs = [0 if part is None else run + CHUNK for run, part in zip(runs, chunk.parts, strict=True)]
            if all(end - run <= _first(stack.group, end) for run, stack in zip(runs, self._stacks, strict=True)):
                whole = len(path)
        return path[:whole]

    def _fill(self, slot: int, chunks: Sequence[Chunk]) -> None:
        end, cache = len(chunks) * CHUNK, self.target.cache
        cache.settle()
        for index, stack in enumerate(self._stacks):
            parts = [chunk.parts[index] for chunk in chunks[_first(stack.group, end) // CHUNK :]]
            stack.write(slot, [part for part in parts if part is not None])
        for group in cache.groups.values():
            group.lengths[slot], group.starts[slot] = end, _first(group, end)
        self.target.positions[slot] = end

    def _add(self, slot: int, text: Sequence[int], tenant: str) -> None:
        self.target.cache.settle()
        self._stacks = self._stacks or _stacks(self.target.cache)
        path, holding = list[Chunk](), self._tenants.setdefault(tenant, Holding())
        for first in range(0, len(text) - CHUNK + 1, CHUNK):
            key = path[-1] if path else tenant, tuple(text[first : first + CHUNK])
            path.append(self._chunk(holding, key, slot, first))
            if not self._fits(path[0]):
                holding.drop(path.pop())
                break
        holding.use(path)
        self._tenants = {name: each for name, each in self._tenants.items() if each.chunks}

    def _chunk(self, holding: Holding, key: tuple[Chunk | str, tuple[int, ...]], slot: int, first: int) -> Chunk:
        """A chunk, with all parts that it had or that the slot still stores."""
        chunk = holding.chunks.get(key) or Chunk(key, [None] * len(self._stacks))
        if key in holding.chunks:
            holding.drop(chunk)
        for index, stack in enumerate(self._stacks):
            if chunk.parts[index] is None:
                chunk.parts[index] = stack.read(slot, first)
        holding.add(chunk)
        return chunk

    def _fits(self, first: Chunk) -> bool:
        """Drop chunks until there is room; false where the next one is the first chunk of the text that is added."""
        while self.bytes > self.capacity:
            largest = max(self._tenants.values(), key=attrgetter("bytes"))
            oldest = next(iter(largest.chunks.values()))
            if oldest is first:
                return False
            largest.drop(oldest)
        return True


def _first(group: LayerGroup, end: int) -> int:
    """The first token that must be stored so that the token at `end` sees all of its window; a chunk's first one."""
    return 0 if group.window is None else max(0, end - group.window + 1) // CHUNK * CHUNK


def _stacks(cache: TreeCache) -> list[Stack]:
    found: dict[Hashable, Stack] = {}
    for window, group in cache.groups.items():
        for layer in group.layers:
            for name in ("keys", "values"):
                buffer = getattr(layer, name)
                if buffer is not None:
                    alike = window, buffer.shape[1], buffer.shape[3], buffer.dtype, buffer.device
                    found.setdefault(alike, Stack(group)).buffers.append((layer, name))
    return list(found.values())
