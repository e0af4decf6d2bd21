"""The cache of one decoding call: its layers taken from a stock transformers cache, and given back to one at the end.

Where rows stand and how they grow is the business of `lade.target.layers`. Knows transformers' caches, no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import cache_utils
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from lade.target.layers import Lane, TreeLayer

DummyLayer = getattr(cache_utils, "DummyLayer", None)  # since transformers 5.15


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
        self.indexed: torch.Tensor | None = None

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

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        """Tokens that are cached; in a forward of trees, for models that add a node's place in the forward to it, [T]
        numbers (`indexed`) that make the node's index in its text of that.
        """
        return super().get_seq_length(layer_idx) if self.indexed is None else self.indexed

    @property
    def lengths(self) -> list[int]:
        return next(iter(self.lanes.values())).lengths

    def prepare(self, rows: int, nodes: int, computed: Sequence[int] | None = None) -> None:
        for lane in self.lanes.values():
            lane.prepare(rows, nodes, computed)

    def discard(self, rows: Sequence[int]) -> None:
        for lane in self.lanes.values():
            lane.discard(rows)

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        for lane in self.lanes.values():
            lane.keep(paths)

    def swap(self, one: int, other: int) -> None:
        for lane in self.lanes.values():
            lane.swap(one, other)

    def export(self, stock: DynamicCache, rows: Sequence[int]) -> None:
        """Write rows, all of one length, into a stock cache in place, in the given order, as plain decoding does."""
        filled = [layer if isinstance(layer, TreeLayer) and layer.is_initialized else None for layer in self.layers]
        while filled and filled[-1] is None:  # layers without keys of their own: plain decoding adds none for them
            filled.pop()
        while len(stock.layers) < len(filled):
            stock.layers.append(DynamicLayer())
        for source, target in zip(filled, stock.layers, strict=False):
            if source is not None:
                _export_layer(source, target, rows)


def _adopt(layer: CacheLayerMixin) -> CacheLayerMixin:
    """Our layer for a stock one, with its contents."""
    if DummyLayer is not None and type(layer) is DummyLayer:
        return layer
    own = TreeLayer(layer.sliding_window if isinstance(layer, DynamicSlidingWindowLayer) else None)
    if layer.is_initialized and layer.keys is not None and layer.keys.numel():
        own.length = own.start = layer.get_seq_length() - layer.keys.shape[2]
        own.update(layer.keys, layer.values)
    return own


def _export_layer(source: TreeLayer, target: DynamicLayer, rows: Sequence[int]) -> None:
    length = source.get_seq_length()
    first = max(0, length - (source.window - 1)) if source.window is not None else 0
    starts = [source.lane.starts[row] if source.lane else source.start for row in rows]
    if not target.is_initialized:
        target.lazy_initialization(source.keys, source.values)
    for name in ("keys", "values"):
        buffer = getattr(source, name)
        held = [buffer[row, :, first - start : length - start] for row, start in zip(rows, starts, strict=True)]
        setattr(target, name, torch.stack(held))
    if isinstance(target, DynamicSlidingWindowLayer):
        target.cumulative_length = length
