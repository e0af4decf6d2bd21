"""What each node of a static step sees of its row's slot, from lengths and ancestor bits that are on the device.

N nodes, R rows, C tokens of a slot. Knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lade.static.inputs import StepInputs
from lade.static.slots import StaticSlots
from lade.target.masks import MaskKind
from lade.target.pieces import WORD


def visible(inputs: StepInputs, slots: StaticSlots) -> tuple[torch.Tensor, torch.Tensor]:
    """[N, C] bool, whether a node sees a place of its slot, and [N, C] which node of its tree lies there, clamped.

    It sees all tokens of the slot, its ancestors and itself; a padding node sees nothing.
    """
    keys = torch.arange(slots.capacity, device=inputs.ids.device)
    index = keys - slots.lengths[inputs.slots][:, None]  # [N, C] in the tree; below 0 in the text
    largest = WORD * inputs.words.shape[1] - 1
    node = index.clamp(0, largest)
    bits = inputs.words.gather(1, node // WORD) >> node % WORD & 1
    within = (index >= 0) & (index <= largest) & bits.bool()
    return (index < 0) | within, node


def masks(
    kinds: Sequence[MaskKind], inputs: StepInputs, slots: StaticSlots, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """[R, 1, N, C] additive mask of each kind, by its name; rows hide the nodes of others."""
    seen, node = visible(inputs, slots)
    own = inputs.slots == inputs.rows[:, None]  # [R, N]
    found = {}
    for kind in kinds:
        reached = seen & _reach(kind, inputs, slots, node)
        hidden = ~(own[:, None, :, None] & reached)
        found[kind.name] = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill(
            hidden, lowest(dtype)
        )
    return found


def lowest(dtype: torch.dtype) -> float:
    """What hides a key. Finite, so that a row that sees nothing has no NaN."""
    return max(torch.finfo(dtype).min, torch.finfo(torch.float32).min)


def _reach(kind: MaskKind, inputs: StepInputs, slots: StaticSlots, node: torch.Tensor) -> torch.Tensor:
    """[N, C] bool, or one that broadcasts: what lies in a node's window or chunk."""
    if kind.window is None and kind.chunk is None:
        return torch.ones((), dtype=torch.bool, device=node.device)
    length = slots.lengths[inputs.slots][:, None]
    keys = torch.arange(slots.capacity, device=node.device)
    first = torch.arange(len(inputs.ids), device=node.device) - inputs.indices  # [N] the root of each node's tree
    last = len(inputs.ids) - 1
    in_tree = inputs.depths[(first[:, None] + node).clamp(max=last)]
    positions = torch.where(keys < length, keys, length + in_tree)
    own = length + inputs.depths[:, None]
    if kind.window is not None:
        return own - positions < kind.window
    assert kind.chunk is not None
    return own // kind.chunk == positions // kind.chunk
