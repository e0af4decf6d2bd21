"""A user's own cache of transformers: the beginning of one request's text, extended in place at its end.

Knows caches of transformers and the KV cache of a target.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from transformers import DynamicCache

from lade.base.shown import invalid
from lade.target.cache import TreeCache
from lade.target.call import Call
from lade.target.model import HFTarget


class OwnCache:
    """The cache of one request, as a place where its prompt begins and its text goes.

    Args:
        target: decodes the request.
        stock: passed `check_cache`.
    """

    def __init__(self, target: HFTarget, stock: DynamicCache) -> None:
        self.target, self.stock = target, stock
        self._begun = list(map(copy, stock.layers))  # as it is now: transformers replaces keys and values, never writes

    def restore(self, slot: int, prompt: Sequence[int], tenant: str | None) -> int:
        """Copy the cache to an open, empty slot. Returns its tokens."""
        length = self._begun[0].get_seq_length() if self._begun else 0
        if length:
            self.target.cache.load(slot, self._begun)
            self.target.positions[slot] = length
        return int(length)

    def keep(self, slot: int, text: Sequence[int], tenant: str | None) -> None:
        """Extend the cache by what the slot holds."""
        if self.target.cache.lengths[slot]:
            self.target.cache.export(self.stock, [slot])


def check_cache(stock: DynamicCache, call: Call, cache: TreeCache) -> None:
    """ValueError where a slot of a cache cannot begin with the cache that a call was given."""
    given = [getattr(layer, "sliding_window", None) for layer in stock.layers]
    own = [getattr(layer, "window", None) for layer in cache.layers]
    if given + [None] * (len(own) - len(given)) != own:  # it gets its other layers later, without windows
        raise invalid("past_key_values", "made with the model's config, as DynamicCache(config=model.config)", stock)
    rows = {layer.keys.shape[0] for layer in stock.layers if getattr(layer, "keys", None) is not None}
    if rows - {1}:
        raise ValueError(f"past_key_values must hold one row, got {max(rows)}")
    mask, (_, width) = call.model_kwargs.get("attention_mask"), call.input_ids.shape
    if stock.get_seq_length() >= width or (mask is not None and not bool(mask.all())):
        raise ValueError(
            f"past_key_values must hold the beginning of input_ids, which have no padding, got {width} tokens in "
            f"input_ids, and {stock.get_seq_length()} in the cache"
        )
