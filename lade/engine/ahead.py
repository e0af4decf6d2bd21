"""Emission where several ranks compute parts of a tree: each chooses after all of its own nodes, before any is emitted.

The text up to a node is known, as is the index of its token: so a choice is that of plain decoding, if the node is
reached. For processors that are row-pure; `lade.engine.emission` is for one process. Knows no drafting.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lade.core.noise import Noise, checked, draw_each
from lade.core.tree import Draft
from lade.engine.emission import OnText, Rows
from lade.engine.purity import TEXT_BLIND
from lade.target.outputs import Outputs


class ChosenAhead(OnText):
    """Chooses after every node whose logits this rank has, for processors of `purity.ROW_PURE`."""

    _vocabulary = 0

    def begin(self, rows: Rows, outputs: Outputs) -> None:
        super().begin(rows, outputs)
        self._vocabulary = self._vocabulary or outputs.logits.shape[-1]
        nodes = [(row, node) for row in rows for node in outputs.lines[row]]
        if nodes and self._chooses:
            outputs.choose_ahead([outputs.lines[row][node] for row, node in nodes], self._choices(nodes))

    @property
    def _chooses(self) -> bool:
        """Whether choices may be others than the likeliest tokens."""
        return self.noise is not None or any(self.processors)

    def _choices(self, nodes: Sequence[tuple[int, int]]) -> torch.Tensor:
        """[M] tokens chosen after nodes of rows."""
        device = self.text.device
        scores = [self._scores(row, node).to(device) for row, node in nodes]
        found = torch.cat(scores)  # [M, V]
        if self.noise is None:
            return found.argmax(-1)
        return draw_each(found.softmax(-1), [self._noise(self.noise, *each, found.shape[-1]) for each in nodes])

    def _scores(self, row: int, node: int) -> torch.Tensor:
        """[1, V]"""
        request, draft = self.rows[row]
        logits = self.outputs.at(row, node).to(copy=True, dtype=torch.float32, device=self.text.device)
        text, processors = self.text.of(request.row), self.processors[request.row]
        if node and any(type(processor) not in TEXT_BLIND for processor in processors):
            text = torch.cat([text, torch.tensor([_path(draft, node)], device=text.device)], dim=1)
        scores: torch.Tensor = processors(text, logits)
        return scores

    def _noise(self, noise: Noise, row: int, node: int, vocabulary: int) -> torch.Tensor:
        """[V], that of the index of the token after a node."""
        request, draft = self.rows[row]
        return noise.at(request.emitted + draft.depths[node], vocabulary)[request.row]

    def end(self) -> None:
        """Let the generator be where plain decoding leaves it, though other ranks used the last noise."""
        if self.noise is not None:
            self.noise.draw_up_to(max(request.emitted for request in self.all), self._vocabulary)

    def choose(self, row: int, node: int) -> int:
        return checked(self.outputs.choice(row, node) if self._chooses else self.outputs.greedy(row, node))


def _path(draft: Draft, node: int) -> list[int]:
    """The tokens of a node and its ancestors, without the root."""
    tokens = []
    while node:
        tokens.append(draft.tokens[node])
        node = draft.parents[node]
    return tokens[::-1]
