"""Emission for drafts that were drawn from a distribution: an acceptance rule keeps the model's distribution.

Random numbers come from the default generator of the device, which plain sampling uses too: a seed reproduces the text,
but it is another text than that of plain decoding. Knows no drafting.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lade.core.proposals import Proposals
from lade.core.request import Request
from lade.core.tree import Draft
from lade.core.verify import decide
from lade.engine.emission import AtOnce, TokenByToken
from lade.target.model import Outputs


class ProposedAtOnce(AtOnce):
    """`AtOnce` for drafts with proposals."""

    def _plain_argmax(self) -> bool:
        return False

    def _pick(
        self, scores: torch.Tensor, requests: Sequence[Request], drafts: Sequence[Draft], outputs: Outputs
    ) -> list[int]:
        probabilities = scores.softmax(-1)  # [n * Q, V]
        tokens = torch.multinomial(probabilities, 1)[:, 0]
        width = len(outputs.columns)
        drafted = [
            (slot * width + outputs.columns[node], draft.proposals, node)
            for slot, draft in enumerate(drafts)
            if draft.proposals is not None
            for node in draft.proposals.drawn
        ]
        if drafted:
            index = torch.tensor([row for row, _, _ in drafted], device=tokens.device)
            nodes = [(proposals, node) for _, proposals, node in drafted]
            tokens[index] = _decided(probabilities[index], nodes)
        return tokens.tolist()


class ProposedTokenByToken(TokenByToken):
    """`TokenByToken` for drafts with proposals."""

    def begin(self, requests: Sequence[Request], drafts: Sequence[Draft], outputs: Outputs) -> None:
        super().begin(requests, drafts, outputs)
        self.drafts = drafts

    def _pick(self, request: Request, slot: int, node: int, scores: torch.Tensor) -> int:
        probabilities = scores.softmax(-1)
        proposals = self.drafts[slot].proposals
        if proposals is None or node not in proposals.drawn:
            return int(torch.multinomial(probabilities, 1).item())
        return int(_decided(probabilities, [(proposals, node)]).item())


def _decided(probabilities: torch.Tensor, nodes: Sequence[tuple[Proposals, int]]) -> torch.Tensor:
    """[M] tokens from [M, V] probabilities after M nodes, each with its draft's proposals; all share a rule."""
    drawn = [proposals.drawn[node] for proposals, node in nodes]
    most = max(map(len, drawn))
    padded = torch.tensor([[*tokens, *[-1] * (most - len(tokens))] for tokens in drawn], device=probabilities.device)
    laws = torch.stack([proposals.laws[node] for proposals, node in nodes]).to(probabilities)
    return decide(nodes[0][0].rule, probabilities, laws, padded)
