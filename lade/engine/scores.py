"""The scores and logits that a caller asked to get back. Filled while tokens are chosen."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(slots=True)
class Record:
    """What `output_scores` and `output_logits` ask to keep, per row: [1, V] float32 each."""

    wants_scores: bool
    wants_logits: bool
    scores: list[list[torch.Tensor]] = field(default_factory=list)
    logits: list[list[torch.Tensor]] = field(default_factory=list)

    @property
    def wanted(self) -> bool:
        return self.wants_scores or self.wants_logits
