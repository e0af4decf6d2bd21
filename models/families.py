"""What differs from the general case, by model type: one file per family that needs saying anything at all.

A family without a row is branched by the general rules (cache layers, masks, rotary switches, self-probe).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lade.models import bloom, falcon, gpt_neo, mpt

REFUSALS: dict[str, Callable[[Any], str | None]] = {
    "bloom": bloom.refusal,
    "falcon": falcon.refusal,
    "gpt_neo": gpt_neo.refusal,
    "mpt": mpt.refusal,
}


def refusal(config: Any) -> str | None:
    """Why a model with this configuration cannot be branched, or `None` where nothing is known against it."""
    rule = REFUSALS.get(getattr(config, "model_type", ""))
    return rule(config) if rule is not None else None
