"""Runs static steps that walk: one copy to the device, the step as a captured graph where that works, one copy back."""

from __future__ import annotations

from collections.abc import Sequence

from lade.core.tree import Draft
from lade.static.graphs import Graphs, Output
from lade.static.inputs import StepRow
from lade.static.walking import Taken, WalkingStep, taken


class StaticRunner:
    """The host's side of steps that choose and walk on the device.

    Args:
        graphs: of the step.
    """

    def __init__(self, step: WalkingStep, graphs: Graphs | None = None) -> None:
        self.graphs = graphs or Graphs(step)

    def run(self, slots: Sequence[int], drafts: Sequence[Draft]) -> list[Taken]:
        """One step of a draft in each of these slots, which must have room for all of its nodes."""
        output, _ = self.launch(slots, drafts)
        return taken(output.cpu(), drafts)

    def launch(self, slots: Sequence[int], drafts: Sequence[Draft]) -> Output:
        """Start a step. Its output is on the device; the next step of its size overwrites it."""
        return self.graphs.run([StepRow(slot, draft) for slot, draft in zip(slots, drafts, strict=True)])
