"""How many token ids a model reads and writes: a head may be wider than the embedding, and the other way round.

What has no embedding is never drafted, as the model could not go on from it.
"""

from __future__ import annotations

from typing import Any


def readable(model: Any) -> int:
    """Ids below this one have an embedding; the configured vocabulary where that cannot be told."""
    return _size(model, "get_input_embeddings", "num_embeddings")


def writable(model: Any) -> int:
    """Ids below this one have a logit; the configured vocabulary where that cannot be told."""
    return _size(model, "get_output_embeddings", "out_features")


def _size(model: Any, layer: str, name: str) -> int:
    try:
        size = getattr(getattr(model, layer)(), name, None)
    except (AttributeError, NotImplementedError):
        size = None
    return size if type(size) is int else int(model.config.get_text_config(decoder=True).vocab_size)
