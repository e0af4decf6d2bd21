"""Masks for eager and SDPA attention: a tree, materialised as additive floats per kind of layer.

A node sees the cached tokens of its row that are not padding, its ancestors and itself; a sliding or chunked layer sees
of those only what its window or chunk holds, by the token's place in the row. Knows lanes and drafts, no model.

n active rows, T nodes (padded), C nodes that they may see (the same, unless trees grow over several forwards), K slots
that the forward looks at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby

import torch

from lade.target.cache import TreeCache
from lade.target.layers import Lane

Mask = torch.Tensor | None  # `None` hides nothing


@dataclass(frozen=True, slots=True)
class Kind:
    """How a kind of layer limits what is seen: a sliding `window`, a `chunk`, or neither."""

    name: str
    window: int | None = None
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """The trees of one step.

    Attributes:
        visible: [n, T, C] bool, row sees column inside the tree.
        depths: n lists of C distances from the root.
        deepest: the largest of them.
        own: n lists of T distances from the root; `None` where those that look are all nodes.
    """

    visible: torch.Tensor
    depths: list[list[int]]
    deepest: int
    own: list[list[int]] | None = None


def layer_kinds(config: object) -> dict[str, Kind] | Kind:
    """The masks that a model takes: one per layer type, or a single one, as transformers' create_masks_for_generate.

    Raises:
        ValueError: the configuration names a layer type whose mask is not known.
    """
    window = getattr(config, "sliding_window", None)
    chunk = getattr(config, "attention_chunk_size", None)
    known = {
        "full_attention": Kind("full_attention"),
        "sliding_attention": Kind("sliding_attention", window=window),
        "chunked_attention": Kind("chunked_attention", chunk=chunk),
    }
    if hasattr(config, "layer_types"):
        unknown = sorted(set(config.layer_types) - set(known))
        if unknown:
            raise ValueError(f"layers of type {', '.join(unknown)} have no tree mask")
        return {name: known[name] for name in dict.fromkeys(config.layer_types)}
    if window is not None:
        return known["sliding_attention"]
    return known["chunked_attention"] if chunk is not None else known["full_attention"]


class DenseMasks:
    """Builds the masks of every step of one call.

    Args:
        kinds: from `layer_kinds`.
        padding: [B, P] bool, True where the prompt holds a token; `None` where there is no padding.
        always: whether the model wants a mask that hides nothing too, as eager attention gets one from plain decoding.
    """

    def __init__(
        self,
        kinds: dict[str, Kind] | Kind,
        cache: TreeCache,
        padding: torch.Tensor | None,
        dtype: torch.dtype,
        device: torch.device,
        always: bool = False,
    ) -> None:
        self.kinds = kinds
        self.always = always
        self.cache = cache
        self.zero = torch.zeros((), dtype=dtype, device=device)
        lowest = max(torch.finfo(dtype).min, torch.finfo(torch.float32).min)  # eager softmax works in float32
        self.floor = torch.full((), lowest, dtype=dtype, device=device)
        self.padding = padding
        rows = len(cache.lengths)
        self.first = [0] * rows if padding is None else [int(row) for row in (padding.cumsum(-1) == 0).sum(-1)]
        self._full = FullMask(self)

    def build(self, block: Block) -> Mask | dict[str, Mask]:
        """[n, 1, T, K] additive masks for the prepared lanes, in the form that the model takes."""
        if isinstance(self.kinds, dict):
            return {name: self._mask(kind, block) for name, kind in self.kinds.items()}
        return self._mask(self.kinds, block)

    def swap(self, one: int, other: int) -> None:
        """Exchange two rows, as the cache did."""
        if self.padding is not None:
            self.padding[[one, other]] = self.padding[[other, one]]
        self.first[one], self.first[other] = self.first[other], self.first[one]
        self._full.swap(one, other)

    def _mask(self, kind: Kind, block: Block) -> Mask:
        lane = self.cache.lane(sliding=kind.window is not None or kind.chunk is not None)
        if not any(lane.starts) and self._sees_all(kind, lane, block):
            if not self.always and self.padding is None and block.visible.numel() == 1:
                return None  # one token sees all, as in plain decoding: attention without a mask is faster
            return self._full.build(lane, block)
        return limited_mask(self, kind, lane, block)

    def _sees_all(self, kind: Kind, lane: Lane, block: Block) -> bool:
        reach = max(lane.lengths[: len(block.depths)]) + block.deepest
        return reach < (kind.window or kind.chunk or math.inf)


class FullMask:
    """A mask kept from step to step: only the columns that a step changed are written again."""

    def __init__(self, masks: DenseMasks) -> None:
        self.masks = masks
        self.buffer = masks.zero.new_zeros(len(masks.first), 0, 0)  # [B, T, capacity]
        self.seen = [0] * len(masks.first)  # columns per row that are final: padding or visible
        self._built: tuple[Block, Lane, torch.Tensor] | None = None

    def build(self, lane: Lane, block: Block) -> torch.Tensor:
        if self._built is not None and self._built[0] is block and self._built[1].extent == lane.extent:
            return self._built[2]
        rows, nodes, columns = block.visible.shape
        self._reserve(nodes, lane.extent)
        inside = torch.where(block.visible, self.masks.zero, self.masks.floor)
        first = 0
        for (seen, held), alike in groupby(zip(self.seen[:rows], lane.lengths[:rows], strict=True)):
            count = len(list(alike))  # rows side by side that stand at the same place
            some = self.buffer.narrow(0, first, count)
            some.narrow(2, seen, held - seen).zero_()
            some.narrow(1, 0, nodes).narrow(2, held, columns).copy_(inside.narrow(0, first, count))
            if held + columns < lane.extent:
                some.narrow(2, held + columns, lane.extent - held - columns).copy_(self.masks.floor)
            first += count
        self.seen[:rows] = lane.lengths[:rows]
        mask = self.buffer[:rows, None, :nodes, : lane.extent]
        self._built = (block, lane, mask)
        return mask

    def swap(self, one: int, other: int) -> None:
        self.buffer[[one, other]] = self.buffer[[other, one]]
        self.seen[one], self.seen[other] = self.seen[other], self.seen[one]

    def _reserve(self, nodes: int, extent: int) -> None:
        rows, height, capacity = self.buffer.shape
        if nodes <= height and extent <= capacity:
            return
        height = max(height, nodes)
        capacity = max(capacity, 1 << (extent - 1).bit_length())
        self.buffer = self.masks.zero.new_zeros(rows, height, capacity)
        self.seen = [0] * rows
        padding = self.masks.padding
        if padding is not None:
            self.buffer[:, :, : padding.shape[1]] = torch.where(padding, self.masks.zero, self.masks.floor)[:, None]
            self.seen = [padding.shape[1]] * rows


def limited_mask(masks: DenseMasks, kind: Kind, lane: Lane, block: Block) -> torch.Tensor:
    """The mask from its definition, for any kind and lane: [n, 1, T, K]."""
    rows, nodes, columns = block.visible.shape
    device = masks.zero.device
    held = torch.tensor([lane.held(row) for row in range(rows)], device=device)[:, None]
    starts = torch.tensor(lane.starts[:rows], device=device)[:, None]
    depths = torch.tensor(block.depths, device=device)
    own_depths = depths if block.own is None else torch.tensor(block.own, device=device)
    slots = torch.arange(lane.extent, device=device)[None]
    in_tree = (slots >= held) & (slots < held + columns)  # [n, K]
    node = (slots - held).clamp(0, columns - 1)
    place = torch.where(in_tree, starts + held + depths.gather(1, node), starts + slots)  # [n, K]
    prefix = slots < held
    if masks.padding is not None:
        width = masks.padding.shape[1]
        prefix &= (place >= width) | masks.padding[:rows].gather(1, place.clamp(max=width - 1))
    tree = block.visible.gather(2, node[:, None].expand(-1, nodes, -1)) & in_tree[:, None]
    seen = prefix[:, None] | tree  # [n, T, K]
    own = (starts + held + own_depths)[:, :, None]  # [n, T, 1]
    if kind.window is not None:
        seen &= own - place[:, None] < kind.window
    if kind.chunk is not None:
        first = torch.tensor(masks.first[:rows], device=device)[:, None, None]
        seen &= (own - first) // kind.chunk == (place[:, None] - first) // kind.chunk
    return torch.where(seen, masks.zero, masks.floor)[:, None]
