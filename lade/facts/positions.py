"""How many positions a model has, by its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def position_limit(config: Any) -> int | None:
    """How many positions a draft may use; `None` for rotary embeddings, which have no limit.

    Learned tables end at max_position_embeddings. The frequencies of `longrope` and `dynamic` rotary embeddings switch
    at a length, and a node beyond it would change the attention of every other node.
    """
    switches = list(rope_switches(config))
    if switches:
        return int(min(switches))
    if getattr(config, "rope_parameters", None) or getattr(config, "rope_theta", None):
        return None
    return getattr(config, "max_position_embeddings", None)


def rope_switches(config: Any) -> Iterator[float]:
    """Sequence lengths at which rotary frequencies change."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    for rope in nested or [parameters]:
        kind = rope.get("rope_type", "default")
        if kind == "longrope":
            yield rope.get("original_max_position_embeddings") or config.max_position_embeddings
        elif "dynamic" in kind:
            yield config.max_position_embeddings
