"""Attention of a static step by a kernel that finds each row's keys in the layers' whole buffers (`lade.kernels`).

N nodes, R rows, H heads of keys and values, G query heads for each, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lade.kernels.rows import Rows, Rules, scale_of
from lade.static.inputs import StepInputs
from lade.static.slots import StaticSlots
from lade.target.masks import MaskKind

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Rows, Rules], torch.Tensor]  # `lade.kernels.launch.attend`
SHORTEST = 2  # keys of the first kind's mark, so that none fits every number of keys by broadcasting


def rows_of(inputs: StepInputs, slots: StaticSlots) -> Rows:
    """The rows of a step, made on the device; padding rows have no nodes."""
    zeros = torch.zeros_like(inputs.rows)
    fields = (
        inputs.firsts, inputs.counts, slots.offsets[inputs.rows], slots.lengths[inputs.rows], zeros, zeros,
        inputs.counts, inputs.trees,
    )  # fmt: skip
    nodes = len(inputs.ids)
    return Rows(torch.stack(fields, dim=1), inputs.integers, nodes, slots.capacity)


def marks(kinds: Sequence[MaskKind], nodes: int, like: torch.Tensor) -> dict[str, torch.Tensor]:
    """[1, 1, N, 2 + index] per kind: what the model passes to its layers in place of masks."""
    return {kind.name: like.new_zeros(1, 1, 1, 1).expand(1, 1, nodes, SHORTEST + i) for i, kind in enumerate(kinds)}


class KernelForward:
    """A static step's forward, for the dispatcher of `lade.target.attention`."""

    rows = 1  # of the model's inputs

    def __init__(self, kernel: Kernel, kinds: Sequence[MaskKind], rows: Rows) -> None:
        self.kernel, self.kinds, self.table = kernel, kinds, rows

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        """What transformers' attention functions return: [1, N, G * H, D].

        Args:
            query: [1, G * H, N, D]
            key, value: [1, H, total, D]
            mask: of `marks`.
        """
        if mask is None or mask.shape[3] - SHORTEST >= len(self.kinds) or others.get("position_bias") is not None:
            raise NotImplementedError("the model changes its masks or its scores")
        kind = self.kinds[mask.shape[3] - SHORTEST]
        rules = Rules(scale_of(query, scaling), kind.window, kind.chunk, others.get("softcap"), others.get("s_aux"))
        return self.kernel(query[0], key[0], value[0], self.table, rules)[None], None
