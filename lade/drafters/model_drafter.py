"""A drafter that asks a model: level by level, each level one forward of the drafting model for all requests.

What the model is (a smaller one, the target with layers skipped) and how candidates are chosen are given to it. Knows
trees and logits. n requests, M nodes of a level, V vocabulary of the target.
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
    """Gives the logits that drafts are made from."""

    def begin(self, requests: Sequence[Request]) -> list[Branch]:
        """A branch per request, grown no deeper than its root."""
        ...

    def expand(self, branches: Sequence[Branch]) -> torch.Tensor:
        """Compute the nodes of some branches that are not computed yet: [M, V] logits of their frontiers in turn."""
        ...

    def keep(self, requests: Sequence[Request], branches: Sequence[Branch], verdicts: Sequence[Verdict]) -> None:
        """The step's paths are known."""
        ...


class ModelDrafter:
    """Drafts trees with a model.

    Args:
        model: the drafting model.
        chooser: how candidates are chosen from its logits.
        length: makes the object that decides how deep the drafts of a request go.
        width: level -> candidates after each node of it, the root being level 0.
        source: what its tokens are called in the statistics.
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
        going = []
        for request, branch, depth in zip(requests, self.branches, depths, strict=True):
            branch.deepest = min(depth, branch.deepest, request.state.limit())
            branch.room = min(branch.room, request.max_nodes)
            if branch.deepest > 0 and not branch.full:
                going.append((request.state, branch))
        level = 0
        while going:
            going = self._level(going, self.width(level))
            level += 1
        return [
            self._draft(request.tokens[-1], branch) for request, branch in zip(requests, self.branches, strict=True)
        ]

    def _level(self, going: Sequence[tuple[Length, Branch]], width: int) -> list[tuple[Length, Branch]]:
        """Hang the next level under the frontiers. Returns the branches that go on."""
        asks = any(length.needs_confidence for length, _ in going)
        chosen = self.chooser.choose(self.model.expand([branch for _, branch in going]), width, asks)
        first, left = 0, []
        for length, branch in going:
            nodes = list(branch.frontier)
            branch.computed = len(branch.tree.tokens)
            self._hang(branch, nodes, chosen, first)
            sure = max(chosen.confidence[first : first + len(nodes)], default=1.0)
            first += len(nodes)
            if branch.depth < branch.deepest and not branch.full and length.goes_on(sure):
                left.append((length, branch))
        return left

    def _hang(self, branch: Branch, nodes: Sequence[int], chosen: Chosen, first: int) -> None:
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
                request.state.learn(draft.depths[-1], len(verdict.path) - 1)

    def end(self) -> Mapping[str, int]:
        return {}
