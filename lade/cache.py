"""Keys and values of all rows, preallocated and written in place: one `TreeCache` per decoding call.

A `Lane` is the bookkeeping that layers of one kind share: how many tokens each row has, and from which one on it still
holds them. Row b writes the tree of a step behind its own last token and `keep` moves the accepted path together, so
there are never holes, and rows of a batch may differ in length. Knows transformers' cache protocol, no model.

B rows, H heads, P tokens a row has (padding included), T nodes of a step, D head size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from transformers import cache_utils
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

DummyLayer = getattr(cache_utils, "DummyLayer", None)  # since transformers 5.15
SLACK = 64  # tokens that a sliding layer may hold beyond its window and the tree, so that it need not compact each step


class TreeLayer(CacheLayerMixin):
    """One layer's keys and values: a plain growing cache in the prefill, after that its lane says where to write."""

    is_croppable = False

    def __init__(self, window: int | None = None) -> None:
        super().__init__()
        self.window = window
        self.is_sliding = window is not None
        self.length = 0  # tokens seen, P
        self.start = 0  # the first token still held
        self.lane: Lane | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys = key_states.new_zeros(*key_states.shape[:2], 0, key_states.shape[3])
        self.values = value_states.new_zeros(*value_states.shape[:2], 0, value_states.shape[3])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store [B, H, T, D] new keys and values; returns all that this forward may look at."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.lane is None:
            return self._append(key_states, value_states)
        self.lane.write(self.keys, key_states)
        self.lane.write(self.values, value_states)
        rows, extent = key_states.shape[0], self.lane.extent
        return self.keys[:rows, :, :extent], self.values[:rows, :, :extent]

    def _append(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        held, new = self.length - self.start, keys.shape[2]
        self.length += new
        if self.window is not None and held + new > self.window + SLACK:
            return self._append_beyond_window(held, keys, values)
        self.reserve(held + new)
        self.keys[:, :, held : held + new] = keys
        self.values[:, :, held : held + new] = values
        return self.keys[:, :, : held + new], self.values[:, :, : held + new]

    def _append_beyond_window(
        self, held: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A prompt longer than the window: all of it is seen once, its last window - 1 tokens are stored."""
        assert self.window is not None
        keys = torch.cat([self.keys[:, :, :held], keys], dim=2)
        values = torch.cat([self.values[:, :, :held], values], dim=2)
        kept = min(self.window - 1, keys.shape[2])
        self.start = self.length - kept
        self.reserve(kept)
        self.keys[:, :, :kept] = keys[:, :, keys.shape[2] - kept :]
        self.values[:, :, :kept] = values[:, :, values.shape[2] - kept :]
        return keys, values

    def reserve(self, tokens: int) -> None:
        """Grow the buffers, by doubling, to hold this many tokens per row. New room is zero: a NaN would spread."""
        capacity = self.keys.shape[2]
        if tokens <= capacity:
            return
        capacity = max(tokens, 1 << (tokens - 1).bit_length())
        if self.window is not None:
            capacity = min(capacity, max(tokens, self.window + 2 * SLACK))
        self.keys = _grown(self.keys, capacity)
        self.values = _grown(self.values, capacity)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        if self.lane is not None:
            return self.lane.extent, 0
        return self.length - self.start + query_length, self.start

    def get_seq_length(self) -> int:
        return max(self.lane.lengths) if self.lane is not None else self.length

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        """The name of `get_max_length` before transformers 5.14."""
        return -1

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        raise NotImplementedError("a lookahead cache has no beams")


def _grown(buffer: torch.Tensor, capacity: int) -> torch.Tensor:
    grown = buffer.new_zeros(*buffer.shape[:2], capacity, buffer.shape[3])
    grown[:, :, : buffer.shape[2]] = buffer
    return grown


class Lane:
    """Where the rows of like layers stand. Slot s of row b holds token `starts[b] + s`; a tree begins at `held(b)`."""

    def __init__(self, layers: Sequence[TreeLayer], rows: int) -> None:
        self.layers = layers
        self.window = layers[0].window
        self.lengths = [layers[0].length] * rows
        self.starts = [layers[0].start] * rows
        self.extent = 0  # slots that this step's forward looks at
        self._offsets: list[int] = []
        for layer in layers:
            layer.lane = self

    def held(self, row: int) -> int:
        return self.lengths[row] - self.starts[row]

    def prepare(self, rows: int, nodes: int) -> None:
        """Make room behind the first `rows` rows for a tree of `nodes` nodes."""
        if self.window is not None:
            for row in range(rows):
                if self.held(row) > self.window - 1 + SLACK:
                    self._compact(row)
        self._offsets = [self.held(row) for row in range(rows)]
        self.extent = max(self._offsets) + nodes
        for layer in self.layers:
            layer.reserve(self.extent)

    def _compact(self, row: int) -> None:
        """Forget what no later token of this row can see."""
        assert self.window is not None
        drop = self.held(row) - (self.window - 1)
        for buffer in self._buffers():
            buffer[row, :, : self.window - 1] = buffer[row, :, drop : drop + self.window - 1].clone()
        self.starts[row] += drop

    def write(self, buffer: torch.Tensor, states: torch.Tensor) -> None:
        """Put [n, H, T, D] states behind the tokens of the first n rows."""
        for row, offset in enumerate(self._offsets):
            buffer[row].narrow(1, offset, states.shape[2]).copy_(states[row])

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Row b keeps the nodes `paths[b]` (ascending, the root first) and forgets the rest of its tree."""
        for row, path in enumerate(paths):
            fixed = next((index for index, node in enumerate(path) if index != node), len(path))
            if fixed < len(path):
                self._move(row, self._offsets[row], list(path[fixed:]), fixed)
            self.lengths[row] += len(path)

    def _move(self, row: int, offset: int, nodes: list[int], to: int) -> None:
        index = torch.tensor([offset + node for node in nodes])
        by_device: dict[torch.device, torch.Tensor] = {}
        for buffer in self._buffers():
            where = by_device.setdefault(buffer.device, index.to(buffer.device))
            buffer[row, :, offset + to : offset + to + len(nodes)] = buffer[row].index_select(1, where)

    def swap(self, one: int, other: int) -> None:
        """Exchange two rows."""
        for buffer in self._buffers():
            held = buffer[one].clone()
            buffer[one] = buffer[other]
            buffer[other] = held
        for values in (self.lengths, self.starts):
            values[one], values[other] = values[other], values[one]

    def _buffers(self) -> Iterable[torch.Tensor]:
        for layer in self.layers:
            yield layer.keys
            yield layer.values


class TreeCache(Cache):
    """A transformers cache whose rows grow by trees.

    Args:
        template: the cache that plain decoding would use; its layers say what is stored, its contents are copied.
        config: the text model's configuration, which says how many layers there are where the template does not yet.
    """

    def __init__(self, template: DynamicCache, config: object) -> None:
        stock = template.layers
        if not stock or template.layer_class_to_replicate is not None:
            wanted = len(DynamicCache(config=config).layers)
            stock = [*stock, *(DynamicLayer() for _ in range(wanted - len(stock)))]
        super().__init__(layers=[_adopt(layer) for layer in stock])
        self.lanes: dict[int | None, Lane] = {}

    def grow_trees(self, rows: int) -> None:
        """The prefill is over: from here on every forward carries trees."""
        kinds: dict[int | None, list[TreeLayer]] = {}
        for layer in self.layers:
            if isinstance(layer, TreeLayer) and layer.is_initialized:
                kinds.setdefault(layer.window, []).append(layer)
        self.lanes = {window: Lane(layers, rows) for window, layers in kinds.items()}

    def lane(self, sliding: bool) -> Lane:
        """The lane that masks of sliding (or full) layers are sized against, as transformers chooses it."""
        for layer in self.layers:
            if isinstance(layer, TreeLayer) and layer.is_sliding == sliding and layer.lane is not None:
                return layer.lane
        return next(iter(self.lanes.values()))

    @property
    def lengths(self) -> list[int]:
        return next(iter(self.lanes.values())).lengths

    def prepare(self, rows: int, nodes: int) -> None:
        for lane in self.lanes.values():
            lane.prepare(rows, nodes)

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        for lane in self.lanes.values():
            lane.keep(paths)

    def swap(self, one: int, other: int) -> None:
        for lane in self.lanes.values():
            lane.swap(one, other)

    def export(self, stock: DynamicCache, rows: Sequence[int]) -> None:
        """Write rows into a stock cache in place, in the given order, as if plain decoding had filled it.

        Rows shorter than the longest end in zeros.
        """
        while len(stock.layers) < len(self.layers):
            stock.layers.append(DynamicLayer())
        for source, target in zip(self.layers, stock.layers, strict=True):
            if isinstance(source, TreeLayer) and source.is_initialized:
                _export_layer(source, target, rows)


def _adopt(layer: CacheLayerMixin) -> CacheLayerMixin:
    """Our layer for a stock one, with its contents."""
    if DummyLayer is not None and type(layer) is DummyLayer:
        return layer
    own = TreeLayer(layer.sliding_window if isinstance(layer, DynamicSlidingWindowLayer) else None)
    if layer.is_initialized and layer.keys is not None and layer.keys.numel():
        own.length = layer.get_seq_length()
        own.start = own.length - layer.keys.shape[2]
        own.lazy_initialization(layer.keys, layer.values)
        own.reserve(layer.keys.shape[2])
        own.keys[:, :, : layer.keys.shape[2]] = layer.keys
        own.values[:, :, : layer.values.shape[2]] = layer.values
    return own


def _export_layer(source: TreeLayer, target: DynamicLayer, rows: Sequence[int]) -> None:
    lane = source.lane
    lengths = [lane.lengths[row] if lane else source.length for row in rows]
    starts = [lane.starts[row] if lane else source.start for row in rows]
    longest = max(lengths)
    first = max(0, longest - (source.window - 1)) if source.window is not None else 0
    if not target.is_initialized:
        target.lazy_initialization(source.keys, source.values)
    for name in ("keys", "values"):
        buffer = getattr(source, name)
        out = buffer.new_zeros(len(rows), buffer.shape[1], longest - first, buffer.shape[3])
        for index, (row, length, start) in enumerate(zip(rows, lengths, starts, strict=True)):
            begin, length = max(first, start), max(first, start, length)
            out[index, :, begin - first : length - first] = buffer[row, :, begin - start : length - start]
        setattr(target, name, out)
    if isinstance(target, DynamicSlidingWindowLayer):
        target.cumulative_length = longest
