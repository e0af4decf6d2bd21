"""KV cache layers, preallocated and compacted in place, and the per-row lengths and offsets that layers share.

Each row writes the tree of a step behind its own last token, and `keep` moves the accepted path together: a row is
contiguous, and the rows of a batch may differ in length. Knows transformers' layer protocol, no model.

B rows, H heads, P tokens of a row (padding included), T nodes of a step, D head size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from transformers.cache_utils import CacheLayerMixin

SLACK = 64  # tokens that a sliding layer stores beyond its window, so that it does not compact in every step


class TreeLayer(CacheLayerMixin):
    """Keys and values of one layer: appended to in the prefill, after that written where its group says.

    Args:
        window: of sliding attention, in tokens; `None` for full attention.
    """

    is_croppable = False

    def __init__(self, window: int | None = None) -> None:
        super().__init__()
        self.window = window
        self.is_sliding = window is not None
        self.length = 0  # tokens seen, P
        self.start = 0  # first token still stored
        self.group: LayerGroup | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys = key_states.new_zeros(*key_states.shape[:2], 0, key_states.shape[3])
        self.values = value_states.new_zeros(*value_states.shape[:2], 0, value_states.shape[3])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new keys and values, [B, H, T, D] each; returns all keys and values that this forward attends to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.group is None:
            return self._append(key_states, value_states)
        return self.group.write(self.keys, key_states), self.group.write(self.values, value_states)

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
        """A prompt longer than the window: this forward attends to all of it, the last window - 1 tokens are stored."""
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
        """Grow the buffers, by doubling, to hold this many tokens per row. New memory is zero: a masked NaN spreads."""
        capacity = self.keys.shape[2]
        if tokens <= capacity:
            return
        capacity = max(tokens, 1 << (tokens - 1).bit_length())
        if self.window is not None:
            capacity = min(capacity, max(tokens, self.window + 2 * SLACK))
        self.keys = _grown(self.keys, capacity)
        self.values = _grown(self.values, capacity)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        if self.group is not None:
            return self.group.kv_length, 0
        return self.length - self.start + query_length, self.start

    def get_seq_length(self) -> int:
        return max(self.group.lengths) if self.group is not None else self.length

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


class LayerGroup:
    """Layers with one window, and what they share: how many tokens each row has, and which of them are stored.

    Args:
        layers: prefilled; of one window.
        rows: B.

    Attributes:
        lengths: tokens of each row, padding included.
        starts: first token of each row that is still stored; the key at index k is that of token starts[row] + k.
        kv_length: keys that the forward of this step attends to, from index 0 on.
    """

    def __init__(self, layers: Sequence[TreeLayer], rows: int) -> None:
        self.layers = layers
        self.window = layers[0].window
        self.lengths = [layers[0].length] * rows
        self.starts = [layers[0].start] * rows
        self.kv_length = 0
        self._offsets: list[int] = []  # key index of each row's first new node
        self._aligned = True  # whether all offsets are equal
        self._rows = rows
        self._capacity = 0  # tokens per row that every buffer has memory for
        self._devices = {layer.keys.device for layer in layers}
        for layer in layers:
            layer.group = self

    def held(self, row: int) -> int:
        """Stored tokens of a row; its tree starts at this key index."""
        return self.lengths[row] - self.starts[row]

    def prepare(self, rows: int, nodes: int, computed: Sequence[int] | None = None) -> None:
        """Reserve memory for trees of `nodes` nodes behind the first `rows` rows.

        Args:
            computed: nodes of each row that earlier forwards of the same step have written.
        """
        if self.window is not None and computed is None:
            for row in range(rows):
                if self.held(row) > self.window - 1 + SLACK:
                    self._compact(row)
        self._offsets = [self.held(row) for row in range(rows)]
        self.kv_length = max(self._offsets) + nodes
        if computed is not None:
            self._offsets = [offset + done for offset, done in zip(self._offsets, computed, strict=True)]
        self._aligned = self._offsets.count(self._offsets[0]) == rows
        if self.kv_length > self._capacity:
            for layer in self.layers:
                layer.reserve(self.kv_length)
            self._capacity = min(layer.keys.shape[2] for layer in self.layers)

    def _compact(self, row: int) -> None:
        """Drop the tokens that are outside the window of every later token of this row."""
        assert self.window is not None
        drop = self.held(row) - (self.window - 1)
        for buffer in self._buffers():
            buffer[row, :, : self.window - 1] = buffer[row, :, drop : drop + self.window - 1].clone()
        self.starts[row] += drop

    def write(self, buffer: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Store the states of new nodes behind what the first n rows hold.

        Args:
            buffer: keys or values of a layer.
            states: [n, H, T, D].

        Returns:
            [n, H, kv_length, D], what this forward attends to.
        """
        nodes, rows = states.shape[2], len(self._offsets)
        active = buffer if rows == self._rows else buffer[:rows]
        if self._aligned:
            active.narrow(2, self._offsets[0], nodes).copy_(states)
        else:
            for row, offset in enumerate(self._offsets):
                active[row].narrow(1, offset, nodes).copy_(states[row])
        return active.narrow(2, 0, self.kv_length)

    def discard(self, rows: Sequence[int]) -> None:
        """Zero what these rows have written behind their tokens."""
        for row in rows:
            for buffer in self._buffers():
                buffer[row, :, self.held(row) :].zero_()

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Make a path of each row's tree part of its tokens and drop the other nodes.

        Args:
            paths: ascending nodes of each row, the root first.
        """
        for row, path in enumerate(paths):
            in_place = next((index for index, node in enumerate(path) if index != node), len(path))
            if in_place < len(path):
                tree = self.held(row)
                self._move(row, [tree + node for node in path[in_place:]], tree + in_place)
            self.lengths[row] += len(path)

    def _move(self, row: int, keys: list[int], to: int) -> None:
        """Copy keys and values at these key indices of a row, in their order, to the indices from `to` on."""
        index = {device: torch.tensor(keys, device=device) for device in self._devices}
        for buffer in self._buffers():
            own = buffer[row]  # [H, capacity, D]
            own.narrow(1, to, len(keys)).copy_(own.index_select(1, index[buffer.device]))

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
