"""Wrappers around a transformers model: those of torch.compile and PEFT."""

from __future__ import annotations

from typing import Any


def unwrapped(model: Any) -> Any:
    """The transformers model inside, whose `generate` runs."""
    model = getattr(model, "_orig_mod", model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model
