"""Emission for drafts that were drawn from a distribution: their rule chooses, and the law is the model's distribution.

Coins, and what is drawn where no candidate is taken, come from the default generator of the device, the one that plain
sampling uses: the same seed gives the same text again, though not plain decoding's. Knows no drafting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
        places = [
            (slot * width + outputs.columns[node], draft.proposals, node)
            for slot, draft in enumerate(drafts)
            if draft.proposals is not None
            for node in draft.proposals.drawn
        ]
        if places:
            index = torch.tensor([place for place, _, _ in places], device=tokens.device)
            asked = [(proposals, node) for _, proposals, node in places]
            tokens[index] = _decided(probabilities[index], asked)
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


def _decided(probabilities: torch.Tensor, asked: Sequence[tuple[Proposals, Any]]) -> torch.Tensor:
    """[M] tokens for [M, V] probabilities after M nodes of drafts that share a rule."""
    drawn = [proposals.drawn[node] for proposals, node in asked]
    most = max(map(len, drawn))
    padded = torch.tensor([[*tokens, *[-1] * (most - len(tokens))] for tokens in drawn], device=probabilities.device)
    laws = torch.stack([proposals.laws[node] for proposals, node in asked]).to(probabilities)
    return decide(asked[0][0].rule, probabilities, laws, padded)
