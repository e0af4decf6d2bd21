"""The target itself, some sub-layers left out, as the drafting model (Draft & Verify, arXiv 2309.08168).

It reads the keys and values that the whole model wrote for the accepted text, and writes those of its own tokens where
the verifying forward will write the whole model's: no cache of its own, no prefill, nothing to catch up with.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lade.core.request import Request, Verdict
from lade.core.tree import TreeBuilder
from lade.drafters.branch import ENDLESS, Branch, expand
from lade.target.model import HFTarget
from lade.target.skipping import Skipping


class SkippedSelf:
    """The target with sub-layers left out.

    Args:
        target: its cache and its rows are drafted in.
        skipping: what is left out.
    """

    def __init__(self, target: HFTarget, skipping: Skipping) -> None:
        self.target, self.skipping = target, skipping
        self.branches: list[Branch] = []

    def begin(self, requests: Sequence[Request]) -> list[Branch]:
        self.branches = [Branch(TreeBuilder(request.tokens[-1]), 0, ENDLESS) for request in requests]
        return self.branches

    def expand(self, branches: Sequence[Branch]) -> torch.Tensor:
        with self.skipping.applied():
            return expand(self.target, self.branches, branches)

    def keep(self, requests: Sequence[Request], branches: Sequence[Branch], verdicts: Sequence[Verdict]) -> None:
        """The target keeps its own cache."""
