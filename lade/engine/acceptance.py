"""Emission for drafts that were drawn from a distribution: an acceptance rule keeps the model's distribution.

Random numbers come from the default generator of the device, which plain sampling uses too: a seed reproduces the text,
but it is another text than that of plain decoding. Knows no drafting.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lade.core.proposals import Proposals
from lade.core.request import Choosing
from lade.core.verify import decide
from lade.engine.emission import AtOnce, Rows, TokenByToken
from lade.target.outputs import Outputs


class ProposedAtOnce(AtOnce):
    """`AtOnce` for drafts with proposals."""

    @property
    def choosing(self) -> Choosing | None:
        return None

    def begin(self, rows: Rows, outputs: Outputs) -> None:
        """Chooses when first asked: before, logits may be NaN and computed again, and a draw from NaN is an error."""
        self.rows, self.outputs, self._chosen = rows, outputs, False
        self.stream.begin_step()

    def choose(self, row: int, node: int) -> int:
        if not self._chosen:
            self._choose_all(self.rows, self.outputs)
            self._chosen = True
        return self.outputs.choice(row, node)

    def _pick(self, scores: torch.Tensor, nodes: Sequence[tuple[int, int]]) -> torch.Tensor:
        probabilities = scores.softmax(-1)  # [M, V]
        tokens = torch.multinomial(probabilities, 1)[:, 0]
        drafted = [
            (index, proposals, node)
            for index, (row, node) in enumerate(nodes)
            if (proposals := self.rows[row][1].proposals) is not None and node in proposals.drawn
        ]
        if drafted:
            index = torch.tensor([index for index, _, _ in drafted], device=tokens.device)
            tokens[index] = _decided(probabilities[index], [(proposals, node) for _, proposals, node in drafted])
        return tokens


class ProposedTokenByToken(TokenByToken):
    """`TokenByToken` for drafts with proposals."""

    def _pick(self, row: int, node: int, scores: torch.Tensor) -> int:
        probabilities = scores.softmax(-1)
        proposals = self.rows[row][1].proposals
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
