"""The scores and logits that a caller gets back, recorded while tokens are chosen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(slots=True)
class Record:
    """What `output_scores` and `output_logits` ask for: per row and emitted token a [1, V] float32 tensor."""

    wants_scores: bool
    wants_logits: bool
    scores: list[list[torch.Tensor]] = field(default_factory=list)
    logits: list[list[torch.Tensor]] = field(default_factory=list)

    @classmethod
    def asked_by(cls, generation_config: Any) -> Record:
        kept = bool(generation_config.return_dict_in_generate)
        return cls(kept and bool(generation_config.output_scores), kept and bool(generation_config.output_logits))

    @property
    def wanted(self) -> bool:
        return self.wants_scores or self.wants_logits
