"""The target with some sub-layers skipped, as the draft model (Draft & Verify, arXiv 2309.08168).

It shares the target's KV cache: it reads what the whole model wrote for the accepted text, and the verifying forward
overwrites what it wrote for its drafts. So it has no prefill, and never lags behind the text.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lade.core.request import Request, Verdict
from lade.core.tree import TreeBuilder
from lade.drafters.branch import UNLIMITED, Branch, expand
from lade.target.model import HFTarget
from lade.target.skipping import Skipping


class SkippedSelf:
    """The target with sub-layers skipped.

    Args:
        target: drafts are computed in its cache and rows.
        skipping: the sub-layers to skip.
    """

    def __init__(self, target: HFTarget, skipping: Skipping) -> None:
        self.target, self.skipping = target, skipping
        self.slots: list[int] = []
        self.branches: list[Branch] = []

    def begin(self, requests: Sequence[Request]) -> list[Branch]:
        self.slots = [request.slot for request in requests]
        self.branches = [Branch(TreeBuilder(request.tokens[-1]), 0, UNLIMITED) for request in requests]
        return self.branches

    def expand(self, branches: Sequence[Branch]) -> torch.Tensor:
        with self.skipping.applied():
            return expand(self.target, self.slots, self.branches, branches)

    def keep(self, requests: Sequence[Request], branches: Sequence[Branch], verdicts: Sequence[Verdict]) -> None:
        """The target keeps its own cache."""

    def stop(self, request: Request) -> None:
        """The target closes its own slots."""
