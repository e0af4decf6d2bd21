"""What the host reads of a static step: the step has found it all, so it comes in one copy, on a CPU too.

M lines, one per node of a step; k tokens of a top-k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from lade.core.tree import Draft
from lade.static.readback import Readback
from lade.static.slots import StaticSlots
from lade.target.outputs import Outputs


def lines_of(drafts: Sequence[Draft]) -> list[dict[int, int]]:
    """Per row of a step: node -> its line; all nodes have one, behind one another."""
    lines, first = [], 0
    for draft in drafts:
        end = first + len(draft.tokens)
        lines.append(dict(enumerate(range(first, end))))
        first = end
    return lines


@dataclass(eq=False)
class StaticOutputs(Outputs):
    """The output of a static step; until the next one, which may overwrite it.

    Attributes:
        found: [M, 2 + 2k] int32, as `StaticStep` returns it.
        slots: that it was computed in.
        step_slots: of the rows.
        back: its way to the host.
    """

    found: torch.Tensor = field(kw_only=True)
    slots: StaticSlots = field(kw_only=True)
    step_slots: Sequence[int] = field(kw_only=True)
    back: Readback = field(kw_only=True)

    @property
    def _on_host(self) -> bool:
        return False

    def _copied(self, found: torch.Tensor) -> np.ndarray:
        return self.back(found)

    def _table(self) -> torch.Tensor:
        """As the step found it, if its probabilities are at the temperatures that are asked for: else anew.

        The slots take these temperatures, so that further steps find them.
        """
        wanted = self.inverse_temperatures or [1.0] * len(self.step_slots)
        return self.found if self.slots.heat(self.step_slots, wanted) else super()._table()
