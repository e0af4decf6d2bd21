"""Runs static steps: one copy to the device, the step as a captured graph where that works, one copy back."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lade.core.tree import Draft
from lade.static.buckets import nodes_bucket, rows_bucket
from lade.static.graphs import Graphs
from lade.static.inputs import packed_inputs, words_for
from lade.static.step import StaticStep, Taken, taken


class StaticRunner:
    """The host's side of a static step.

    Args:
        graphs: of the step.
    """

    def __init__(self, step: StaticStep, graphs: Graphs | None = None) -> None:
        self.step, self.graphs = step, graphs or Graphs(step)

    def run(self, slots: Sequence[int], drafts: Sequence[Draft]) -> list[Taken]:
        """One step of a draft in each of these slots, which must have room for all of its nodes."""
        output, _ = self.launch(slots, drafts)
        return taken(output.cpu(), drafts)

    def launch(self, slots: Sequence[int], drafts: Sequence[Draft]) -> tuple[torch.Tensor, torch.Tensor]:
        """Start a step. Its output, `StaticStep`'s, is on the device; the next step of its size overwrites it."""
        nodes, rows = nodes_bucket(sum(map(len, drafts))), rows_bucket(len(drafts))
        numbers = torch.from_numpy(packed_inputs(slots, drafts, nodes, rows, self.step.slots.spare))
        return self.graphs.replay((nodes, rows, words_for(drafts)), numbers)
