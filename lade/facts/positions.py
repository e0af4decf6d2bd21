"""How many positions a model can tell apart, by its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def position_limit(config: Any) -> int | None:
    """How many positions a draft may use; `None` for rotary embeddings, which have no end.

    Learned tables end at max_position_embeddings, and one node past the switch of `longrope` or `dynamic` rotary
    embeddings would change what every other node sees.
    """
    changing = list(rope_switches(config))
    if changing:
        return int(min(changing))
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
