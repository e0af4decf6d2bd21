"""A user's own cache of transformers: the beginning of one request's text, extended in place at its end.

Knows caches of transformers and the KV cache of a target.
"""

from __future__ import annotations

from collections.abc import Sequence

from transformers import DynamicCache, StaticCache
from transformers.cache_utils import CacheLayerMixin, StaticLayer

from lade.base.shown import invalid
from lade.target.cache import TreeCache
from lade.target.call import Call
from lade.target.model import HFTarget
from lade.target.stock import length_of, snapshot, window_of


class OwnCache:
    """The cache of one request, as a place where its prompt begins and its text goes.

    Args:
        target: decodes the request.
        stock: passed `check_cache`.
    """

    def __init__(self, target: HFTarget, stock: DynamicCache | StaticCache) -> None:
        self.target, self.stock = target, stock
        self._begun = list(map(snapshot, stock.layers))  # as it is now

    def restore(self, slot: int, prompt: Sequence[int], tenant: str | None) -> int:
        """Copy the cache to an open, empty slot. Returns its tokens."""
        length = length_of(self._begun[0]) if self._begun else 0
        if length:
            self.target.cache.load(slot, self._begun)
            self.target.positions[slot] = length
        return length

    def keep(self, slot: int, text: Sequence[int], tenant: str | None) -> None:
        """Extend the cache by what the slot holds."""
        if self.target.cache.lengths[slot]:
            self.target.cache.export(self.stock, [slot])


def check_cache(stock: DynamicCache | StaticCache, call: Call, cache: TreeCache) -> None:
    """ValueError where a slot of a cache cannot begin with the cache that a call was given."""
    own = [getattr(layer, "window", None) for layer in cache.layers]
    given = [_window(layer, window) for layer, window in zip(stock.layers, own, strict=False)]
    if given + [None] * (len(own) - len(given)) != own:  # it gets its other layers later, without windows
        raise invalid("past_key_values", "made with the model's config, as DynamicCache(config=model.config)", stock)
    rows = {layer.keys.shape[0] for layer in stock.layers if getattr(layer, "keys", None) is not None}
    if rows - {1}:
        raise ValueError(f"past_key_values must hold one row, got {max(rows)}")
    mask, (_, width) = call.model_kwargs.get("attention_mask"), call.input_ids.shape
    if (length := int(stock.get_seq_length())) >= width or (mask is not None and not bool(mask.all())):
        raise ValueError(
            f"past_key_values must hold the beginning of input_ids, which have no padding, got {width} tokens in "
            f"input_ids, and {length} in the cache"
        )


def _window(layer: CacheLayerMixin, own: int | None) -> int | None:
    """The sliding window of a layer of transformers. A static one knows only whether it has any, such as `own`."""
    if isinstance(layer, StaticLayer):
        return (own or 0) if layer.is_sliding else None
    return window_of(layer)
