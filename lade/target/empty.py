"""The target of a model before any text."""

from __future__ import annotations

from typing import Any

from lade.core.stats import Clock
from lade.facts.positions import position_limit
from lade.target.masks import layer_kinds
from lade.target.model import HFTarget
from lade.target.probe import empty_cache


def empty_target(model: Any, packed: bool | None = None, flash: bool = False) -> HFTarget:
    """With an empty KV cache and a clock of its own; other arguments as of `HFTarget`."""
    config = model.config.get_text_config(decoder=True)
    return HFTarget(model, empty_cache(model), layer_kinds(config), position_limit(config), Clock(), packed, flash)
