"""What a model reads of a conversation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model reads.

    Attributes:
        ids: its tokens.
        inputs: further arguments of the model's forward, such as `pixel_values`; none where there are no images.
    """

    ids: list[int]
    inputs: dict[str, Any] = field(default_factory=dict)
