"""Exceptions by model type, one file per family.

A family without a row follows the general rules (cache layers, masks, rotary switches, self-probe).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lade.models import bloom, falcon, git, gpt_neo, mpt

REFUSALS: dict[str, Callable[[Any], str | None]] = {
    "bloom": bloom.refusal,
    "falcon": falcon.refusal,
    "gpt_neo": gpt_neo.refusal,
    "mpt": mpt.refusal,
}
BATCH_REFUSALS: dict[str, Callable[[Any], str | None]] = {"git": git.batch_refusal}
# Families that build masks of their own for images only; text gets the usual masks.
TEXT_MASKS_ARE_ORDINARY = {"gemma3", "gemma3_text", "gemma4", "gemma4_text"}


def refusal(model: Any, rows: int = 1) -> str | None:
    """Why this model cannot decode draft trees with this many rows, or `None` if no reason is known."""
    config = model.config.get_text_config(decoder=True)
    rule = REFUSALS.get(config.model_type) or (BATCH_REFUSALS.get(config.model_type) if rows > 1 else None)
    if rule is not None:
        return rule(config)
    if hasattr(type(model), "create_masks_for_generate") and config.model_type not in TEXT_MASKS_ARE_ORDINARY:
        return f"{model.config.model_type} builds attention masks of its own"
    return None
