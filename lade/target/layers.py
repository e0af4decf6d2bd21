"""One layer's keys and values, and the lane that like layers share: preallocated, written and compacted in place.

A `Lane` says how many tokens each row has, and from which one on it still holds them. Row b writes the tree of a step
behind its own last token and `keep` moves the accepted path together, so there are never holes, and rows of a batch may
differ in length. Knows transformers' layer protocol, no model.

B rows, H heads, P tokens a row has (padding included), T nodes of a step, D head size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from transformers.cache_utils import CacheLayerMixin

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
        return self.lane.write(self.keys, key_states), self.lane.write(self.values, value_states)

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
        self._offsets: list[int] = []  # where each row's new nodes go
        self._abreast = True  # whether that is the same place for all
        self._rows = rows
        self._capacity = 0  # slots that every buffer has at least
        for layer in layers:
            layer.lane = self

    def held(self, row: int) -> int:
        return self.lengths[row] - self.starts[row]

    def prepare(self, rows: int, nodes: int, computed: Sequence[int] | None = None) -> None:
        """Make room behind the first `rows` rows for a tree of `nodes` nodes.

        Args:
            computed: nodes of each row that stand there already, from earlier forwards of the same step.
        """
        if self.window is not None and computed is None:
            for row in range(rows):
                if self.held(row) > self.window - 1 + SLACK:
                    self._compact(row)
        self._offsets = [self.held(row) for row in range(rows)]
        self.extent = max(self._offsets) + nodes
        if computed is not None:
            self._offsets = [offset + done for offset, done in zip(self._offsets, computed, strict=True)]
        self._abreast = self._offsets.count(self._offsets[0]) == rows
        if self.extent > self._capacity:
            for layer in self.layers:
                layer.reserve(self.extent)
            self._capacity = min(layer.keys.shape[2] for layer in self.layers)

    def _compact(self, row: int) -> None:
        """Forget what no later token of this row can see."""
        assert self.window is not None
        drop = self.held(row) - (self.window - 1)
        for buffer in self._buffers():
            buffer[row, :, : self.window - 1] = buffer[row, :, drop : drop + self.window - 1].clone()
        self.starts[row] += drop

    def write(self, buffer: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Put [n, H, T, D] states behind the tokens, and the nodes computed before, of the first n rows.

        Returns:
            [n, H, extent, D], what this forward may look at.
        """
        nodes, rows = states.shape[2], len(self._offsets)
        active = buffer if rows == self._rows else buffer[:rows]
        if self._abreast:
            active.narrow(2, self._offsets[0], nodes).copy_(states)
        else:
            for row, offset in enumerate(self._offsets):
                active[row].narrow(1, offset, nodes).copy_(states[row])
        return active.narrow(2, 0, self.extent)

    def discard(self, rows: Sequence[int]) -> None:
        """Clear what stands behind these rows' tokens."""
        for row in rows:
            for buffer in self._buffers():
                buffer[row, :, self.held(row) :].zero_()

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Row b keeps the nodes `paths[b]` (ascending, the root first) and forgets the rest of its tree."""
        for row, path in enumerate(paths):
            fixed = next((index for index, node in enumerate(path) if index != node), len(path))
            if fixed < len(path):
                self._move(row, self.held(row), list(path[fixed:]), fixed)
            self.lengths[row] += len(path)

    def _move(self, row: int, offset: int, nodes: list[int], to: int) -> None:
        index = torch.tensor([offset + node for node in nodes])
        by_device: dict[torch.device, torch.Tensor] = {}
        for buffer in self._buffers():
            where = by_device.setdefault(buffer.device, index.to(buffer.device))
            text = buffer[row]
            text.narrow(1, offset + to, len(nodes)).copy_(text.index_select(1, where))

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
