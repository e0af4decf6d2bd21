"""The rest of a call that rank 0 decodes alone: the others wait for its texts, and compute nothing.

Where a caller wants the cache of such a rank, it computes the texts' keys and values at the end. Knows no model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import torch

from lade.core.drafter import Drafter, Predictions
from lade.core.request import Request, Verdict
from lade.core.tree import Draft, TreeBuilder
from lade.distributed.group import Group
from lade.distributed.wrapped import Wrapped
from lade.target.outputs import Outputs

Texts = Sequence[list[int]]  # emitted tokens per row


def exchanged(group: Group, own: Texts | None) -> Texts:
    """The texts of rank 0, on all ranks. `own` is `None` on the others, which wait for them."""
    data = group.broadcast_bytes(None if own is None else json.dumps(own).encode())
    texts: Texts = json.loads(data) if own is None else own
    return texts


class LeadingDrafter(Wrapped):
    """That of rank 0. Its steps alone teach no costs, which are those of steps that all ranks share."""

    def __init__(self, inner: Drafter, alone: Callable[[], bool]) -> None:
        super().__init__(inner)
        self._alone = alone

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        predictions: Predictions,
    ) -> None:
        super().observe(requests, drafts, verdicts, predictions)
        if self._alone():
            self.pause()


class FollowingDrafter(Wrapped):
    """That of the other ranks. Drafts what rank 0 has decoded alone.

    Args:
        texts: waits for them; `None` as long as all ranks take part.
    """

    def __init__(self, inner: Drafter, texts: Callable[[], Texts | None]) -> None:
        super().__init__(inner)
        self._texts = texts

    def draft(self, requests: Sequence[Request], depths: Sequence[int]) -> list[Draft]:
        texts = self._texts()
        if texts is None:
            return self.inner.draft(requests, depths)
        return [_known(request, texts[request.row]) for request in requests]

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        predictions: Predictions,
    ) -> None:
        if self._texts() is None:
            super().observe(requests, drafts, verdicts, predictions)


def _known(request: Request, text: list[int]) -> Draft:
    """The rest of a text, as a chain."""
    builder = TreeBuilder(request.tokens[-1])
    builder.add_path(0, text[request.emitted : -1], "known")
    return builder.build()


class KnownOutputs(Outputs):
    """What follows nodes on the known texts, without logits.

    Args:
        texts: emitted tokens, per row of the forward.
        begins: index of the token after each row's root.
        drafts: of the forward; all nodes that are asked for lie on the texts.
        vocabulary: V
    """

    def __init__(self, texts: Texts, begins: Sequence[int], drafts: Sequence[Draft], vocabulary: int) -> None:
        lines: list[Mapping[int, int]] = [{} for _ in texts]
        super().__init__(torch.empty(0, vocabulary), lines, vocabulary=vocabulary)
        self._texts, self._begins, self._drafts = texts, begins, drafts

    def choice(self, row: int, node: int) -> int:
        return self._texts[row][self._begins[row] + self._drafts[row].depths[node]]

    def greedy(self, row: int, node: int) -> int:
        return self.choice(row, node)

    def nan_rows(self, rows: Sequence[int]) -> list[int]:
        return []
