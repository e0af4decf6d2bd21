"""Reasons of a call's KV cache to fall back to plain decoding (`lade.entry.fallback`)."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import DynamicCache, StaticCache
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from lade.target.cache import DummyLayer
from lade.target.call import Call, longest_text

CACHES = (DynamicCache, StaticCache)
CACHE_LAYERS = {DynamicLayer, DynamicSlidingWindowLayer, StaticLayer, StaticSlidingWindowLayer, DummyLayer}


def cache_reason(call: Call) -> str | None:
    """Why a call's cache cannot hold draft trees, or `None`."""
    if getattr(call.model, "_is_stateful", False):
        return "the model keeps a recurrent state"
    cache = call.model_kwargs.get("past_key_values")
    if cache is None:
        return "the model keeps no DynamicCache"
    if type(cache) not in CACHES:
        return f"a cache of type {type(cache).__name__} (drafts need a DynamicCache or a StaticCache)"
    if getattr(cache, "offloading", False):
        return "the cache is offloaded"
    foreign = sorted({type(layer).__name__ for layer in cache.layers if type(layer) not in CACHE_LAYERS})
    if foreign:
        return f"cache layers of type {', '.join(foreign)}"
    windows = {layer.sliding_window for layer in cache.layers if isinstance(layer, DynamicSlidingWindowLayer)}
    if len(windows) > 1:
        return "layers with sliding windows of different sizes"
    if min(windows, default=2) < 2:
        return "layers with a sliding window of one token, of which transformers' cache keeps all"
    if any(getattr(layer, "record_past", False) for layer in cache.layers):
        return "a cache that records its past (activate_past_recording)"
    crossing = getattr(call.text_config, "cross_attention_layers", None) or ()
    if any(cache.layers[layer].is_initialized for layer in crossing if layer < len(cache.layers)):
        return "cross-attention to an image that the cache holds"
    if cache.layer_class_to_replicate not in (None, DynamicLayer):
        return f"cache layers of type {cache.layer_class_to_replicate.__name__}"
    return _static_layers(call, [layer for layer in cache.layers if isinstance(layer, StaticLayer)])


def _static_layers(call: Call, layers: Sequence[StaticLayer]) -> str | None:
    """They must hold the whole text: full ones have no room for more, and sliding ones drop what they held."""
    longest = longest_text(call) - 1 if layers else 0  # the last token is not computed
    for layer in layers:
        if layer.is_initialized and layer.keys.shape[0] != call.input_ids.shape[0]:
            return "a static cache of another number of rows"
        if longest > layer.max_cache_len:
            what = "sliding window" if layer.is_sliding else "cache"
            return f"the text may outgrow a static {what} of {layer.max_cache_len} tokens"
    return None
