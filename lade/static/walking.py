"""A static step that chooses, walks and keeps on the device, so that another step may follow without the host.

N nodes of all rows, W words of ancestors, V vocabulary, k tokens of a top-k.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from lade.core.tree import Draft
from lade.static.choices import Chooser
from lade.static.inputs import CERTAIN, UNASKED, StepInputs
from lade.static.kernelrows import Kernel
from lade.static.slots import StaticSlots
from lade.static.step import StaticStep
from lade.target.pieces import WORD

RIGHT = 2  # flag of a node that is accepted


class WalkingStep(StaticStep):
    """The function, for one model; lengths are those that earlier steps left in the slots.

    Args:
        chooser: how a token is chosen after each node.
    """

    def __init__(
        self,
        model: Any,
        slots: StaticSlots,
        chooser: Chooser,
        vocabulary: int | None = None,
        kernel: Kernel | None = None,
    ) -> None:
        super().__init__(model, slots, vocabulary, kernel)
        self.chooser = chooser

    def begin(self, inputs: StepInputs) -> None:
        """All is kept at the end of the last step."""

    def core(self, inputs: StepInputs) -> tuple[torch.Tensor, ...]:
        """As `StaticStep`, with the choice after each node in place of the most likely token, and `RIGHT`; behind them
        [N] bool, the accepted nodes."""
        logits = self.compute(inputs)
        choices = self.chooser(logits, inputs, self.slots)
        right = self.walk(inputs, choices)
        return self.table(logits, choices, inputs, RIGHT * right[:, None]), logits, right

    def end(self, inputs: StepInputs, found: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep the accepted nodes."""
        table, logits, right = found
        self.slots.keep(right, inputs.depths, inputs.slots, right & (inputs.orders > UNASKED))
        return table, logits

    def walk(self, inputs: StepInputs, choices: torch.Tensor) -> torch.Tensor:
        """[N] bool: the nodes whose ancestors and which themselves are what was chosen after their parents."""
        fits = (inputs.claims == CERTAIN) | (inputs.claims == choices[inputs.parents])
        first = torch.arange(len(fits), device=fits.device) - inputs.indices
        bits = torch.arange(WORD, device=fits.device)
        ancestors = (inputs.words[:, :, None] >> bits & 1).flatten(1).bool()  # [N, 64 * W]
        others = (first[:, None] + torch.arange(ancestors.shape[1], device=fits.device)).clamp(max=len(fits) - 1)
        return (fits[others] | ~ancestors).all(1) & (inputs.slots != self.slots.spare)


class Taken(NamedTuple):
    """What one row has of a step; views of its output.

    Attributes:
        path: accepted nodes, ascending.
        tokens: emitted: those chosen after the accepted nodes whose logits are asked for.
        likeliest: [T, k] of each node, int32.
        probabilities: [T, k] of each node, float32.
    """

    path: list[int]
    tokens: list[int]
    likeliest: np.ndarray
    probabilities: np.ndarray


def taken(output: torch.Tensor, drafts: Sequence[Draft]) -> list[Taken]:
    """What each row has of the output of a step, which is on the host."""
    table, k = output.numpy(), output.shape[1] // 2 - 1
    choices, flags = table[:, 0].tolist(), table[:, 1].tolist()
    likeliest, probabilities = table[:, 2 : 2 + k], table[:, 2 + k :].view(np.float32)
    found, first = [], 0
    for draft in drafts:
        end = first + len(draft.tokens)
        path = [node for node, flag in enumerate(flags[first:end]) if flag & RIGHT]
        asked = draft.queries[0] if draft.queries else end
        tokens = [choices[first + node] for node in path if node >= asked]
        found.append(Taken(path, tokens, likeliest[first:end], probabilities[first:end]))
        first = end
    return found
