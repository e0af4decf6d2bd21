"""Additive attention masks of token trees, for eager and SDPA attention.

A node sees the cached tokens of its row that are not padding, its ancestors and itself; a layer with a sliding window
or with chunks sees of those only what lies in its window or chunk, by position in the row. `limited_mask` builds a mask
from this definition; `FullMask` builds that of full attention in fewer operations. Knows caches and trees, no model.

n active rows, T nodes that see (padded), C nodes that are seen (C = T, unless a tree grows over several forwards),
K keys that the forward attends to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby

import torch

from lade.target.cache import TreeCache
from lade.target.layers import LayerGroup

Mask = torch.Tensor | None  # `None` hides nothing


@dataclass(frozen=True, slots=True)
class MaskKind:
    """What a layer type sees: the last `window` tokens, the tokens of the same `chunk`, or all."""

    name: str
    window: int | None = None
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """The trees of one forward.

    Attributes:
        visible: [n, T, C] bool, whether a node sees another one.
        depths: [n][C] distances from the root, of the nodes that are seen.
        deepest: the largest of them.
        own: [n][T] distances from the root, of the nodes that see; `None` where these are the same nodes.
    """

    visible: torch.Tensor
    depths: list[list[int]]
    deepest: int
    own: list[list[int]] | None = None


def layer_kinds(config: object) -> dict[str, MaskKind] | MaskKind:
    """The masks that a model takes: one per layer type, or one, as transformers' `create_masks_for_generate`.

    Raises:
        ValueError: the configuration names a layer type without a known mask.
    """
    window = getattr(config, "sliding_window", None)
    chunk = getattr(config, "attention_chunk_size", None)
    known = {
        "full_attention": MaskKind("full_attention"),
        "sliding_attention": MaskKind("sliding_attention", window=window),
        "chunked_attention": MaskKind("chunked_attention", chunk=chunk),
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
    """The masks of all forwards of one call.

    Args:
        kinds: `layer_kinds` of the model.
        padding: [B, P] bool, True where the prompt has a token; `None` where there is no padding.
        always: whether the model needs a mask even where it hides nothing, as eager attention does.

    Attributes:
        first: index of each row's first token that is not padding.
    """

    def __init__(
        self,
        kinds: dict[str, MaskKind] | MaskKind,
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
        self.lowest = torch.full((), lowest, dtype=dtype, device=device)
        self.padding = padding
        rows = len(cache.lengths)
        self.first = [0] * rows if padding is None else [int(row) for row in (padding.cumsum(-1) == 0).sum(-1)]
        self._full = FullMask(self)

    def build(self, block: Block) -> Mask | dict[str, Mask]:
        """[n, 1, T, K] masks of a forward that the cache is prepared for, in the form that the model takes."""
        if isinstance(self.kinds, dict):
            return {name: self._mask(kind, block) for name, kind in self.kinds.items()}
        return self._mask(self.kinds, block)

    def swap(self, one: int, other: int) -> None:
        """Exchange two rows."""
        if self.padding is not None:
            self.padding[[one, other]] = self.padding[[other, one]]
        self.first[one], self.first[other] = self.first[other], self.first[one]
        self._full.swap(one, other)

    def _mask(self, kind: MaskKind, block: Block) -> Mask:
        group = self.cache.group(sliding=kind.window is not None or kind.chunk is not None)
        if not any(group.starts) and self._sees_all(kind, group, block):
            if not self.always and self.padding is None and block.visible.numel() == 1:
                return None  # one token sees all, as in plain decoding: attention without a mask is faster
            return self._full.build(group, block)
        return limited_mask(self, kind, group, block)

    def _sees_all(self, kind: MaskKind, group: LayerGroup, block: Block) -> bool:
        """Whether every row is still shorter than the window or chunk."""
        longest = max(group.lengths[: len(block.depths)]) + block.deepest
        return longest < (kind.window or kind.chunk or math.inf)


class FullMask:
    """The mask of full attention, kept from step to step: a step writes only the columns that it changes.

    Attributes:
        buffer: [B, T, capacity].
        final: per row, the first columns that no later step changes: padding is masked there, tokens are visible.
    """

    def __init__(self, masks: DenseMasks) -> None:
        self.masks = masks
        self.buffer = masks.zero.new_zeros(len(masks.first), 0, 0)
        self.final = [0] * len(masks.first)
        self._built: tuple[Block, int, torch.Tensor] | None = None

    def build(self, group: LayerGroup, block: Block) -> torch.Tensor:
        """[n, 1, T, K]; layer groups with the same keys share it."""
        if self._built is not None and self._built[0] is block and self._built[1] == group.kv_length:
            return self._built[2]
        rows, nodes, columns = block.visible.shape
        self._reserve(nodes, group.kv_length)
        tree = torch.where(block.visible, self.masks.zero, self.masks.lowest)
        first = 0
        for (final, length), alike in groupby(zip(self.final[:rows], group.lengths[:rows], strict=True)):
            count = len(list(alike))  # neighbouring rows of one length are written together
            some = self.buffer.narrow(0, first, count)
            some.narrow(2, final, length - final).zero_()
            some.narrow(1, 0, nodes).narrow(2, length, columns).copy_(tree.narrow(0, first, count))
            end = length + columns
            if end < group.kv_length:
                some.narrow(2, end, group.kv_length - end).copy_(self.masks.lowest)
            first += count
        self.final[:rows] = group.lengths[:rows]
        mask = self.buffer[:rows, None, :nodes, : group.kv_length]
        self._built = (block, group.kv_length, mask)
        return mask

    def swap(self, one: int, other: int) -> None:
        self.buffer[[one, other]] = self.buffer[[other, one]]
        self.final[one], self.final[other] = self.final[other], self.final[one]

    def _reserve(self, nodes: int, kv_length: int) -> None:
        rows, height, capacity = self.buffer.shape
        if nodes <= height and kv_length <= capacity:
            return
        height = max(height, nodes)
        capacity = max(capacity, 1 << (kv_length - 1).bit_length())
        self.buffer = self.masks.zero.new_zeros(rows, height, capacity)
        self.final = [0] * rows
        padding = self.masks.padding
        if padding is not None:
            self.buffer[:, :, : padding.shape[1]] = torch.where(padding, self.masks.zero, self.masks.lowest)[:, None]
            self.final = [padding.shape[1]] * rows


def limited_mask(masks: DenseMasks, kind: MaskKind, group: LayerGroup, block: Block) -> torch.Tensor:
    """[n, 1, T, K] from the definition, for any kind of mask."""
    rows, nodes, columns = block.visible.shape
    device = masks.zero.device
    held = torch.tensor([group.held(row) for row in range(rows)], device=device)[:, None]
    starts = torch.tensor(group.starts[:rows], device=device)[:, None]
    depths = torch.tensor(block.depths, device=device)
    own_depths = depths if block.own is None else torch.tensor(block.own, device=device)
    keys = torch.arange(group.kv_length, device=device)[None]
    in_tree = (keys >= held) & (keys < held + columns)  # [n, K]
    node = (keys - held).clamp(0, columns - 1)
    position = torch.where(in_tree, starts + held + depths.gather(1, node), starts + keys)  # [n, K]
    prefix = keys < held
    if masks.padding is not None:
        width = masks.padding.shape[1]
        prefix &= (position >= width) | masks.padding[:rows].gather(1, position.clamp(max=width - 1))
    tree = block.visible.gather(2, node[:, None].expand(-1, nodes, -1)) & in_tree[:, None]
    seen = prefix[:, None] | tree  # [n, T, K]
    own = (starts + held + own_depths)[:, :, None]  # [n, T, 1]
    if kind.window is not None:
        seen &= own - position[:, None] < kind.window
    if kind.chunk is not None:
        first = torch.tensor(masks.first[:rows], device=device)[:, None, None]
        seen &= (own - first) // kind.chunk == (position[:, None] - first) // kind.chunk
    return torch.where(seen, masks.zero, masks.lowest)[:, None]
