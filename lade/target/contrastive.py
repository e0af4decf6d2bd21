"""The target of contrastive decoding: two models compute the same trees, each with its own KV cache.

Their logits become one set of scores (`lade.target.contrast`), so drafting and choosing are those of one model.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import DynamicCache

from lade.core.tree import Draft
from lade.target.call import Call
from lade.target.contrast import Contrast, contrasted
from lade.target.model import HFTarget
from lade.target.outputs import Outputs


class ContrastiveTarget:
    """An expert and an amateur that compute the same trees.

    Args:
        expert: the user's model; its cache is returned to the caller.
        amateur: prefilled with the whole prompt in each call.
        call: the amateur's call (`lade.entry.amateur`).
    """

    def __init__(self, expert: HFTarget, amateur: HFTarget, call: Call, contrast: Contrast) -> None:
        self.expert, self.amateur, self.call, self.contrast = expert, amateur, call, contrast
        self.clock = expert.clock
        self.vocabulary = min(expert.vocabulary, amateur.vocabulary)
        self.packed = expert.packed and amateur.packed
        self.undisturbed = False

    @property
    def untimed(self) -> bool:
        return self.expert.untimed or self.amateur.untimed

    def prefill(
        self, input_ids: torch.Tensor, generation_config: Any, model_kwargs: dict[str, Any], most: int | None = None
    ) -> Outputs:
        """The scores after the last prompt token, as those of node 0 (`HFTarget.prefill`)."""
        expert = self.expert.prefill(input_ids, generation_config, model_kwargs, most)
        amateur = self.amateur.prefill(self.call.input_ids, generation_config, self.call.model_kwargs, most)
        return self._outputs(expert, amateur)

    def open(self, slot: int, tokens: int, most: int | None = None) -> None:
        self.expert.open(slot, tokens, most)
        self.amateur.open(slot, tokens, most)

    def close(self, slot: int) -> None:
        self.expert.close(slot)
        self.amateur.close(slot)

    def depth_limit(self, slot: int, remaining: int) -> int:
        return min(self.expert.depth_limit(slot, remaining), self.amateur.depth_limit(slot, remaining))

    def max_nodes(self, slots: Sequence[int]) -> int:
        return min(self.expert.max_nodes(slots), self.amateur.max_nodes(slots))

    def forward(self, slots: Sequence[int], drafts: Sequence[Draft]) -> Outputs:
        """One forward of each model, of a draft in each of these slots; the clock counts one."""
        return self._outputs(self.expert.forward(slots, drafts), self.amateur.forward(slots, drafts))

    def discard(self, slots: Sequence[int]) -> None:
        self.expert.discard(slots)
        self.amateur.discard(slots)

    def keep(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        self.expert.keep(slots, paths)
        self.amateur.keep(slots, paths)

    def export(self, stock: DynamicCache) -> None:
        """Export the expert's cache; a call that continues from it prefills the amateur with the whole text again."""
        self.expert.export(stock)

    def _outputs(self, expert: Outputs, amateur: Outputs) -> Outputs:
        logits, theirs, lines = expert.logits, amateur.logits, expert.lines
        if lines != amateur.lines:  # padded rows have lines that packed ones have not
            nodes = [sorted(own.keys() & other.keys()) for own, other in zip(lines, amateur.lines, strict=True)]
            logits, theirs = _chosen(expert, nodes), _chosen(amateur, nodes)
            count = itertools.count()
            lines = [{node: next(count) for node in each} for each in nodes]
        return replace(expert, logits=contrasted(logits, theirs, self.contrast), lines=lines)


def _chosen(outputs: Outputs, nodes: Sequence[Sequence[int]]) -> torch.Tensor:
    """[M, V] logits of some nodes of each row."""
    return outputs.logits[[lines[node] for lines, each in zip(outputs.lines, nodes, strict=True) for node in each]]
