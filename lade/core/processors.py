"""Logits processors as values: which of them do the same. Knows none by name."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch


def parameters_of(processor: Any) -> Hashable:
    """A processor's type and parameters; those that are equal compute the same."""
    own = [(name, _value(value)) for name, value in sorted(vars(processor).items())]
    return type(processor), *own


def _value(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), str(value.tolist())
    return value if isinstance(value, Hashable) else repr(value)
