"""Choosing and emitting tokens as plain decoding does, once per token.

`AtOnce` chooses after all nodes of a forward together, with one small copy to the host, for processors that do not read
the text; `TokenByToken` runs every processor once per emitted token. Both emit the same tokens. Knows no drafting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lade.core.noise import Noise, checked, choose, draw
from lade.core.request import Request
from lade.core.tree import Draft
from lade.engine.purity import processors_of_row
from lade.engine.scores import Record
from lade.engine.stopping import StopRule
from lade.engine.stream import Stream
from lade.engine.text import Text, UnreadText
from lade.target.model import Outputs


class AtOnce:
    """Chooses after every queried node of a forward together.

    Args:
        requests: all rows of the call.
        processors: of `purity.TEXT_BLIND`, applied to [n * Q, V] scores.
        ends: the stop rule.
        noise: for sampling; `None` chooses the most likely token.
    """

    def __init__(
        self, requests: Sequence[Request], stream: Stream, processors: Any, ends: StopRule, noise: Noise | None
    ) -> None:
        self.all = requests
        self.stream, self.processors, self.ends, self.noise = stream, processors, ends, noise
        self.active: Sequence[Request] = requests

    def begin(self, requests: Sequence[Request], drafts: Sequence[Draft], outputs: Outputs) -> None:
        self.active, self.outputs = requests, outputs
        self.stream.begin_step()
        self.choices = None if self._plain_argmax() else self._choose_all(requests, drafts, outputs)

    def _plain_argmax(self) -> bool:
        return self.noise is None and not self.processors

    def _choose_all(self, requests: Sequence[Request], drafts: Sequence[Draft], outputs: Outputs) -> list[list[int]]:
        rows, width, vocabulary = outputs.logits.shape
        device = outputs.logits.device if self.noise is None else self.noise.device
        scores = outputs.logits.to(device, torch.float32, copy=True).view(rows * width, vocabulary)
        if self.processors:
            scores = self.processors(torch.zeros(rows * width, 1, dtype=torch.long, device=scores.device), scores)
        flat = self._pick(scores, requests, drafts, outputs)
        return [flat[start : start + width] for start in range(0, rows * width, width)]

    def _pick(
        self, scores: torch.Tensor, requests: Sequence[Request], drafts: Sequence[Draft], outputs: Outputs
    ) -> list[int]:
        """n * Q tokens from [n * Q, V] scores."""
        if self.noise is None:
            return scores.argmax(-1).tolist()
        self.noise.forget(min(request.emitted for request in self.all if not request.finished))
        return draw(scores.softmax(-1), self._noise_at(self.noise, requests, drafts, outputs))

    def _noise_at(
        self, noise: Noise, requests: Sequence[Request], drafts: Sequence[Draft], outputs: Outputs
    ) -> torch.Tensor:
        """[n * Q, V]; a node at depth d takes the noise of the d-th index after the root's."""
        vocabulary = outputs.logits.shape[-1]
        rows = []
        for request, draft in zip(requests, drafts, strict=True):
            depths = (draft.depths[node] if node < len(draft) else 0 for node in outputs.columns)
            rows += [noise.at(request.emitted + depth, vocabulary)[request.row] for depth in depths]
        return torch.stack(rows)

    def choose(self, slot: int, node: int) -> int:
        if self.choices is None:
            return self.outputs.greedy(slot, node)
        return checked(self.choices[slot][self.outputs.columns[node]])  # other nodes may have no distribution

    def emit(self, slot: int, token: int) -> bool:
        request = self.active[slot]
        request.tokens.append(token)
        request.finished = self.ends(request)
        self.stream.flush()
        return request.finished


class TokenByToken:
    """Runs processors and the stop rule once per emitted token, on the row's text so far.

    Args:
        requests: all rows of the call.
        ends: the stop rule.
        text: the token ids of all rows; emitted tokens are appended.
        noise: for sampling; `None` chooses the most likely token.
        record: scores and logits are appended.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        stream: Stream,
        processors: Any,
        ends: StopRule,
        text: Text | UnreadText,
        noise: Noise | None,
        record: Record,
    ) -> None:
        self.all = requests
        self.processors = [processors_of_row(processors, request.row, len(requests)) for request in requests]
        self.stream, self.ends, self.text = stream, ends, text
        self.noise, self.record = noise, record
        self.active: Sequence[Request] = requests
        record.scores, record.logits = [[] for _ in requests], [[] for _ in requests]

    def begin(self, requests: Sequence[Request], drafts: Sequence[Draft], outputs: Outputs) -> None:
        self.active, self.outputs = requests, outputs
        self.stream.begin_step()
        if self.noise is not None:
            self.noise.forget(min(request.emitted for request in self.all if not request.finished))

    def choose(self, slot: int, node: int) -> int:
        request = self.active[slot]
        return self._pick(request, slot, node, self._scored(request.row, self.outputs.at(slot, node)))

    def pad(self, token: int, row: int, logits: torch.Tensor) -> None:
        """Record scores and logits behind a row's end, where plain decoding emits padding.

        Args:
            token: the padding token, appended to the row's text.
            logits: [1, V] after the row's text so far.
        """
        self._scored(row, logits)
        self.text.append(row, token)

    def _scored(self, row: int, logits: torch.Tensor) -> torch.Tensor:
        """[1, V] scores from [1, V] logits after a row's text so far; both are recorded if asked for."""
        logits = logits.to(copy=True, dtype=torch.float32, device=self.text.device)
        scores: torch.Tensor = self.processors[row](self.text.of(row), logits)
        if self.record.wants_scores:
            self.record.scores[row].append(scores)
        if self.record.wants_logits:
            self.record.logits[row].append(logits)
        return scores

    def _pick(self, request: Request, slot: int, node: int, scores: torch.Tensor) -> int:
        """A token from [1, V] scores."""
        if self.noise is None:
            return int(scores.argmax(-1).item())
        noise = self.noise.at(request.emitted, scores.shape[-1], scores.dtype).narrow(0, request.row, 1)
        return choose(scores.softmax(-1), noise)[0]

    def emit(self, slot: int, token: int) -> bool:
        request = self.active[slot]
        request.tokens.append(token)
        self.text.append(request.row, token)
        request.finished = self.ends(request)
        self.stream.flush()
        return request.finished
