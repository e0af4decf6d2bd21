"""A drafter that grows trees with a model, level by level: one forward of the draft model per level for all requests.

The model (a smaller one, or the target with layers skipped) and the choice of candidates are arguments. Knows trees and
logits. n requests, M nodes of a level, V vocabulary of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import torch

from lade.core.drafter import Predictions
from lade.core.proposals import Proposals
from lade.core.request import Request, Verdict
from lade.core.tree import Draft
from lade.drafters.branch import Branch
from lade.drafters.lengths import Length
from lade.drafters.multi_candidate import Chooser, Chosen


class DraftingModel(Protocol):
    """A model that drafts."""

    def begin(self, requests: Sequence[Request]) -> list[Branch]:
        """A branch per request, with no node below its root."""
        ...

    def expand(self, branches: Sequence[Branch]) -> torch.Tensor:
        """Compute the branches' nodes that are not computed: [M, V] logits of the frontiers, branch by branch."""
        ...

    def keep(self, requests: Sequence[Request], branches: Sequence[Branch], verdicts: Sequence[Verdict]) -> None:
        """Keep the accepted paths of a step in the cache."""
        ...

    def stop(self, request: Request) -> None:
        """Let go of a request that has left."""
        ...


class ModelDrafter:
    """Drafts trees with a model.

    Args:
        model: the draft model.
        chooser: chooses candidates from its logits.
        length: makes a request's `Length`, which decides how deep its drafts go.
        width: level -> candidates after each node of that level; the root is level 0.
        source: name of its tokens in the statistics.
    """

    def __init__(
        self,
        model: DraftingModel,
        chooser: Chooser,
        length: Callable[[], Length],
        width: Callable[[int], int],
        source: str,
    ) -> None:
        self.model, self.chooser, self.length, self.width, self.source = model, chooser, length, width, source
        self.branches: list[Branch] = []

    def start(self, request: Request) -> None:
        request.state = self.length()

    def draft(self, requests: Sequence[Request], depths: Sequence[int]) -> list[Draft]:
        self.branches = self.model.begin(requests)
        active = []
        for request, branch, depth in zip(requests, self.branches, depths, strict=True):
            branch.deepest = min(depth, branch.deepest, request.state.limit())
            branch.room = min(branch.room, request.max_nodes)
            if branch.deepest > 0 and not branch.full:
                active.append((request.state, branch))
        level = 0
        while active:
            active = self._level(active, self.width(level))
            level += 1
        return [
            self._draft(request.tokens[-1], branch) for request, branch in zip(requests, self.branches, strict=True)
        ]

    def _level(self, active: Sequence[tuple[Length, Branch]], width: int) -> list[tuple[Length, Branch]]:
        """Add the next level. Returns the branches that get another one."""
        needs_confidence = any(length.needs_confidence for length, _ in active)
        chosen = self.chooser.choose(self.model.expand([branch for _, branch in active]), width, needs_confidence)
        first, left = 0, []
        for length, branch in active:
            nodes = list(branch.frontier)
            branch.computed = len(branch.tree.tokens)
            self._add(branch, nodes, chosen, first)
            confidence = max(chosen.confidence[first : first + len(nodes)], default=1.0)
            first += len(nodes)
            if branch.depth < branch.deepest and not branch.full and length.continues(confidence):
                left.append((length, branch))
        return left

    def _add(self, branch: Branch, nodes: Sequence[int], chosen: Chosen, first: int) -> None:
        for row, node in enumerate(nodes, first):
            for token in chosen.tokens[row]:
                if not branch.full:
                    branch.tree.add(node, token, self.source)
            if chosen.laws is not None:
                branch.drawn[node], branch.laws[node] = chosen.tokens[row], chosen.laws[row]

    def _draft(self, token: int, branch: Branch) -> Draft:
        draft, rule, root = branch.drafted(token), self.chooser.rule, branch.root
        if rule is None:
            return draft
        drawn = {node - root: tokens for node, tokens in branch.drawn.items()}
        laws = {node - root: law for node, law in branch.laws.items()}
        return replace(draft, proposals=Proposals(rule, drawn, laws))

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        predictions: Predictions,
    ) -> None:
        self.model.keep(requests, self.branches, verdicts)
        for request, draft, verdict in zip(requests, drafts, verdicts, strict=True):
            if len(draft) > 1:
                request.state.update(draft.depths[-1], len(verdict.path) - 1)

    def pause(self) -> None:
        """Nothing is timed."""

    def stop(self, request: Request) -> None:
        request.state = None
        self.model.stop(request)

    def end(self) -> Mapping[str, int]:
        return {}
