"""The KV cache of a target: made from a cache of transformers, exported to one at the end.

`lade.target.layers` holds the layers, `lade.target.store` their slots. Knows transformers' caches, no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import cache_utils
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer, StaticCache, StaticLayer

from lade.target.groups import PackedGroup, PaddedGroup
from lade.target.layers import Prefix, TreeLayer
from lade.target.stock import contents, fill, length_of, window_of
from lade.target.store import LayerGroup
from lade.target.upload import Upload

DummyLayer = getattr(cache_utils, "DummyLayer", None)  # since transformers 5.15


class TreeCache(Cache):
    """A cache of transformers with slots: a forward appends a token tree to each slot, and one path of it is kept.

    Args:
        template: the cache that plain decoding would use; its layer types and contents are copied. The contents are
            the beginning of the first prefill.
        config: the text model's configuration; gives the number of layers where the template has none yet.

    Attributes:
        groups: layers by window.
        indexed: [T] what `get_seq_length` returns during a forward (`lade.facts.temperature`); `None`: the length.
    """

    def __init__(self, template: DynamicCache | StaticCache, config: object) -> None:
        stock = template.layers
        if not stock or template.layer_class_to_replicate is not None:
            wanted = len(DynamicCache(config=config).layers)
            stock = [*stock, *(DynamicLayer() for _ in range(wanted - len(stock)))]
        super().__init__(layers=[_adopt(layer) for layer in stock])
        self.indexed: torch.Tensor | None = None
        by_window: dict[int | None, list[TreeLayer]] = {}
        for layer in self.own_layers():
            by_window.setdefault(layer.window, []).append(layer)
        self.groups: dict[int | None, LayerGroup] = {
            window: PaddedGroup(layers) for window, layers in by_window.items()
        }

    def own_layers(self) -> list[TreeLayer]:
        return [layer for layer in self.layers if isinstance(layer, TreeLayer)]

    def group(self, sliding: bool) -> LayerGroup:
        """The group that sizes the masks of sliding (or full) layers, chosen as transformers does."""
        found = (group for window, group in self.groups.items() if (window is not None) == sliding)
        return next(found, next(iter(self.groups.values())))

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        """Cached tokens. In a forward of trees, for models that add a node's index in the forward to this number: [T]
        numbers that sum with it to the node's index in its text.
        """
        return super().get_seq_length(layer_idx) if self.indexed is None else self.indexed

    @property
    def lengths(self) -> dict[int, int]:
        """Tokens of each slot, padding included."""
        return next(iter(self.groups.values())).lengths

    def level(self, tokens: int) -> None:
        """Give slots that open from now on multiples of so many tokens (`LayerGroup.level`)."""
        for group in self.groups.values():
            group.level = tokens

    def pack(self, packed: bool) -> None:
        """Whether forwards take the nodes of their rows behind one another; said before any slot."""
        kind = PackedGroup if packed else PaddedGroup
        self.groups = {window: kind(group.layers) for window, group in self.groups.items()}

    # Slots

    def open(self, slots: Sequence[int], tokens: int, most: int | None = None) -> None:
        """Give new slots memory for so many tokens and some more; `most` bounds what they grow to."""
        for group in self.groups.values():
            group.open(slots, tokens, most)

    def close(self, slot: int) -> None:
        """Free a slot's memory."""
        for group in self.groups.values():
            group.close(slot)

    def begin_prefill(self) -> None:
        """Let the next forwards append a batch of prompts."""
        self.indexed = None
        for layer in self.own_layers():
            layer.prefix = layer.prefix or Prefix(None if layer.window is None else layer.window + layer.group.margin)

    def end_prefill(self, slots: Sequence[int], most: int | None = None, opened: bool = False) -> None:
        """Move the rows of the prefill into slots: new ones, or such as are open and empty. `most` is as in `open`."""
        self._forget_adopted()
        for group in self.groups.values():
            if not opened:
                held = max(layer.prefix.held if layer.prefix is not None else 0 for layer in group.layers)
                group.open(slots, held, most)
            group.take(slots)

    def load(self, slot: int, stock: Sequence[CacheLayerMixin]) -> None:
        """Copy layers of transformers with one row to an open, empty slot."""
        for own, layer in zip(self.layers, stock, strict=False):
            if isinstance(own, TreeLayer):
                own.prefix = _prefix(layer, None if own.window is None else own.window + own.group.margin)
                own.is_initialized = own.is_initialized or layer.is_initialized
        for group in self.groups.values():
            group.take([slot])

    def leave_prefill(self) -> None:
        """Without a prefill: slots are opened empty, and what the template holds is dropped."""
        self._forget_adopted()
        for layer in self.own_layers():
            layer.prefix = None

    def _forget_adopted(self) -> None:
        """Before the first slot, the keys of a layer are those that it adopted."""
        if not self.lengths:
            for layer in self.own_layers():
                layer.keys = layer.values = None

    # Steps

    def prepare(self, slots: Sequence[int], columns: Sequence[int], computed: Sequence[int]) -> None:
        for group in self.groups.values():
            group.prepare(slots, columns, computed)

    def send(self, upload: Upload) -> None:
        for group in self.groups.values():
            group.send(upload)

    def settle(self) -> None:
        for group in self.groups.values():
            group.settle()

    def discard(self, slots: Sequence[int]) -> None:
        for group in self.groups.values():
            group.discard(slots)

    def keep(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        for group in self.groups.values():
            group.keep(slots, paths)

    def export(self, stock: DynamicCache | StaticCache, slots: Sequence[int], margin: bool = False) -> None:
        """Write slots of equal length into a cache of transformers, in this order, as plain decoding leaves it.

        Args:
            margin: whether sliding layers hold what is stored beyond their window too (`LayerGroup.margin`).
        """
        self.settle()
        filled = [layer if isinstance(layer, TreeLayer) and layer.is_initialized else None for layer in self.layers]
        while filled and filled[-1] is None:  # layers without keys: plain decoding adds none for them
            filled.pop()
        while len(stock.layers) < len(filled):
            stock.layers.append(DynamicLayer())
        for source, target in zip(filled, stock.layers, strict=False):
            if source is not None:
                _export_layer(source, target, slots, source.group.margin if margin else 0)


def _adopt(layer: CacheLayerMixin) -> CacheLayerMixin:
    """A tree layer with the contents of a layer of transformers."""
    if DummyLayer is not None and type(layer) is DummyLayer:
        return layer
    own = TreeLayer(window_of(layer))
    own.prefix = _prefix(layer, own.window)
    own.is_initialized = own.prefix.keys is not None
    own.keys, own.values = own.prefix.keys, own.prefix.values  # some models look whether there are any
    return own


def _prefix(layer: CacheLayerMixin, window: int | None) -> Prefix:
    """A copy of the contents of a layer of transformers."""
    prefix, held = Prefix(window), contents(layer)
    if held is not None:
        prefix.length = prefix.start = length_of(layer) - held[0].shape[2]
        prefix.append(*held)
    return prefix


def _export_layer(source: TreeLayer, target: CacheLayerMixin, slots: Sequence[int], margin: int) -> None:
    group, length = source.group, source.group.lengths[slots[0]]
    first = 0
    if source.window is not None:
        first = max(group.starts[slots[0]], length - (source.window - 1) - margin)
    if isinstance(target, StaticLayer):
        first = 0  # it holds all of its text
    keys, values = (
        torch.stack([group.tokens(buffer, slot, first) for slot in slots]) for buffer in (source.keys, source.values)
    )
    fill(target, keys, values, length)
