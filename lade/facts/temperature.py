"""Attention temperature that follows a token's index in the cache, not its position (Llama 4, arXiv 2501.19399).

Layers without rotary embeddings scale their queries by 1 + attn_scale * log(1 + floor((index + 1) / floor_scale)). The
index is the cache's length plus the place in the forward: right for texts, wrong for trees. Knows configurations only.
"""

from __future__ import annotations

import math
from typing import Any


def follows_index(config: Any) -> bool:
    """Whether a model has layers with such a temperature."""
    tuned = getattr(config, "attn_temperature_tuning", False) and getattr(config, "attn_scale", 0.0)
    return bool(tuned) and not all(getattr(config, "no_rope_layers", None) or [1])


def changes(config: Any, first: float, last: float) -> bool:
    """Whether the temperature differs between the indices from `first` to `last`, which may be infinite."""
    if not follows_index(config):
        return False
    return math.isinf(last) or (first + 1) // config.floor_scale != (last + 1) // config.floor_scale
