"""How many token ids a model reads and writes: the sizes of its embedding and of its head may differ.

A token without an embedding is never drafted, as the model cannot continue after it.
"""

from __future__ import annotations

from typing import Any


def readable(model: Any) -> int:
    """Ids below this one have an embedding; the configured vocabulary size where the model does not tell."""
    return _size(model, "get_input_embeddings", "num_embeddings")


def writable(model: Any) -> int:
    """Ids below this one have a logit; the configured vocabulary size where the model does not tell."""
    return _size(model, "get_output_embeddings", "out_features")


def _size(model: Any, layer: str, name: str) -> int:
    try:
        size = getattr(getattr(model, layer)(), name, None)
    except (AttributeError, NotImplementedError):
        size = None
    return size if type(size) is int else int(model.config.get_text_config(decoder=True).vocab_size)
