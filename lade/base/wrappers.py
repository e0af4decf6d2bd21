"""What may stand around a transformers model: torch.compile's wrapper, and PEFT's."""

from __future__ import annotations

from typing import Any


def unwrapped(model: Any) -> Any:
    """The transformers model whose `generate` runs in the end."""
    model = getattr(model, "_orig_mod", model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model
