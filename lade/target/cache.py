"""The KV cache of one call: made from a cache of transformers, exported to one at the end.

`lade.target.layers` holds the layers. Knows transformers' caches, no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import cache_utils
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from lade.target.layers import LayerGroup, TreeLayer

DummyLayer = getattr(cache_utils, "DummyLayer", None)  # since transformers 5.15


class TreeCache(Cache):
    """A cache of transformers that appends a token tree to each row and keeps one path of it.

    Args:
        template: the cache that plain decoding would use; its layer types and contents are copied.
        config: the text model's configuration; gives the number of layers where the template has none yet.

    Attributes:
        groups: layers by window.
        indexed: [T] what `get_seq_length` returns during a forward (`lade.facts.temperature`); `None`: the length.
    """

    def __init__(self, template: DynamicCache, config: object) -> None:
        stock = template.layers
        if not stock or template.layer_class_to_replicate is not None:
            wanted = len(DynamicCache(config=config).layers)
            stock = [*stock, *(DynamicLayer() for _ in range(wanted - len(stock)))]
        super().__init__(layers=[_adopt(layer) for layer in stock])
        self.groups: dict[int | None, LayerGroup] = {}
        self.indexed: torch.Tensor | None = None

    def grow_trees(self, rows: int) -> None:
        """End the prefill: every later forward carries a tree per row."""
        by_window: dict[int | None, list[TreeLayer]] = {}
        for layer in self.layers:
            if isinstance(layer, TreeLayer) and layer.is_initialized:
                by_window.setdefault(layer.window, []).append(layer)
        self.groups = {window: LayerGroup(layers, rows) for window, layers in by_window.items()}

    def group(self, sliding: bool) -> LayerGroup:
        """The group that sizes the masks of sliding (or full) layers, chosen as transformers does."""
        for layer in self.layers:
            if isinstance(layer, TreeLayer) and layer.is_sliding == sliding and layer.group is not None:
                return layer.group
        return next(iter(self.groups.values()))

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        """Cached tokens. In a forward of trees, for models that add a node's index in the forward to this number: [T]
        numbers that sum with it to the node's index in its text.
        """
        return super().get_seq_length(layer_idx) if self.indexed is None else self.indexed

    @property
    def lengths(self) -> list[int]:
        return next(iter(self.groups.values())).lengths

    def prepare(self, rows: int, nodes: int, computed: Sequence[int] | None = None) -> None:
        for group in self.groups.values():
            group.prepare(rows, nodes, computed)

    def discard(self, rows: Sequence[int]) -> None:
        for group in self.groups.values():
            group.discard(rows)

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        for group in self.groups.values():
            group.keep(paths)

    def swap(self, one: int, other: int) -> None:
        for group in self.groups.values():
            group.swap(one, other)

    def export(self, stock: DynamicCache, rows: Sequence[int]) -> None:
        """Write rows of equal length into a cache of transformers, in this order, as plain decoding leaves it."""
        filled = [layer if isinstance(layer, TreeLayer) and layer.is_initialized else None for layer in self.layers]
        while filled and filled[-1] is None:  # layers without keys: plain decoding adds none for them
            filled.pop()
        while len(stock.layers) < len(filled):
            stock.layers.append(DynamicLayer())
        for source, target in zip(filled, stock.layers, strict=False):
            if source is not None:
                _export_layer(source, target, rows)


def _adopt(layer: CacheLayerMixin) -> CacheLayerMixin:
    """A tree layer with the contents of a layer of transformers."""
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
    starts = [source.group.starts[row] if source.group else source.start for row in rows]
    if not target.is_initialized:
        target.lazy_initialization(source.keys, source.values)
    for name in ("keys", "values"):
        buffer = getattr(source, name)
        kept = [buffer[row, :, first - start : length - start] for row, start in zip(rows, starts, strict=True)]
        setattr(target, name, torch.stack(kept))
    if isinstance(target, DynamicSlidingWindowLayer):
        target.cumulative_length = length
