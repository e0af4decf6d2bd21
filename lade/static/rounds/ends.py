"""Where texts end, on the device. N nodes, S slots, V vocabulary."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from lade.facts.vocabulary import readable, writable
from lade.static.slots import StaticSlots


class Ends:
    """Tokens after which the text of each slot ends, beside those that the model cannot read."""

    def __init__(self, model: object, slots: StaticSlots) -> None:
        self._known = torch.zeros(slots.count + 1, writable(model), dtype=torch.bool, device=slots.lengths.device)
        self._readable = readable(model)
        self._known[:, self._readable :] = True

    def begin(self, slot: int, tokens: Iterable[int]) -> None:
        """Another request is in this slot, whose text ends after these."""
        own = self._known[slot]
        own[: self._readable] = False
        own[[token for token in tokens if 0 <= token < len(own)]] = True

    def __call__(self, slots: torch.Tensor, choices: torch.Tensor) -> torch.Tensor:
        """[N] bool, whether a text in [N] slots ends after [N] tokens; a token below 0 is none."""
        return self._known[slots, choices.clamp(min=0)] | (choices < 0)
