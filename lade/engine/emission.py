"""Choosing and emitting tokens as plain decoding does, once per token.

`AtOnce` chooses after all nodes of a forward together, with one small copy to the host, for processors that do not read
the text; `TokenByToken` runs every processor once per emitted token; `lade.engine.levels` does so for several rows
together. All emit the same tokens. Knows no drafting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lade.core.noise import Noise, checked, choose, draw_each
from lade.core.request import Choosing, Request
from lade.core.tree import Draft
from lade.engine.nucleus import without_sort
from lade.engine.purity import processors_of_row
from lade.engine.scores import Record
from lade.engine.stopping import HostRule, StopRule
from lade.engine.stream import Stream
from lade.engine.text import Text, UnreadText
from lade.target.outputs import Outputs

Rows = Mapping[int, tuple[Request, Draft]]  # row of a forward's outputs -> the request, and its draft


class AtOnce:
    """Chooses after every queried node of a forward together.

    Args:
        requests: all rows of the call.
        processors: of `purity.TEXT_BLIND`, applied to [M, V] scores.
        ends: the stop rule.
        noise: for sampling; `None` chooses the most likely token.

    Attributes:
        greedy: whether the most likely token is chosen, whatever the text.
    """

    def __init__(
        self, requests: Sequence[Request], stream: Stream, processors: Any, ends: HostRule, noise: Noise | None
    ) -> None:
        self.all = requests
        self.stream, self.processors, self.ends, self.noise = stream, processors, ends, noise
        self.greedy = noise is None and not processors
        self.rows: Rows = {}

    @property
    def choosing(self) -> Choosing | None:
        return Choosing(self.all, self.processors or (), self.noise, self.ends.eos)

    def begin(self, rows: Rows, outputs: Outputs) -> None:
        self.rows, self.outputs = rows, outputs
        self.stream.begin_step()
        if not (self.greedy or outputs.chosen):
            self._choose_all(rows, outputs)

    def _choose_all(self, rows: Rows, outputs: Outputs) -> None:
        nodes = [(row, node) for row, (_, draft) in rows.items() for node in draft.queries]
        lines = [outputs.lines[row][node] for row, node in nodes]
        device = outputs.logits.device if self.noise is None else self.noise.device
        scores = outputs.of(lines).to(device, torch.float32, copy=True)  # [M, V]
        if self.processors:
            scores = self.processors(torch.zeros(len(lines), 1, dtype=torch.long, device=device), scores)
        outputs.choose_ahead(lines, self._pick(scores, nodes))

    def _pick(self, scores: torch.Tensor, nodes: Sequence[tuple[int, int]]) -> torch.Tensor:
        """[M] tokens from [M, V] scores after M nodes of rows."""
        if self.noise is None:
            return scores.argmax(-1)
        self.noise.forget(min(request.emitted for request in self.all if not request.finished))
        return draw_each(scores.softmax(-1), self._noise_at(self.noise, nodes, scores.shape[-1]))

    def _noise_at(self, noise: Noise, nodes: Sequence[tuple[int, int]], vocabulary: int) -> list[torch.Tensor]:
        """[V] per node; one at depth d takes the noise of the d-th index after that of the row's first choice."""
        found = []
        for row, node in nodes:
            request, draft = self.rows[row]
            depth = draft.depths[node] - draft.depths[draft.queries[0]]
            found.append(noise.at(request.emitted + depth, vocabulary)[request.row])
        return found

    def choose(self, row: int, node: int) -> int:
        if self.greedy:
            return self.outputs.greedy(row, node)
        return checked(self.outputs.choice(row, node))  # other nodes may have no distribution

    def emit(self, row: int, token: int) -> bool:
        request, _ = self.rows[row]
        request.tokens.append(token)
        request.finished = self.ends(request)
        self.stream.flush()
        return request.finished


class OnText:
    """What emissions share whose processors or stop rules may read the text.

    Args:
        requests: all rows of the call.
        ends: the stop rule.
        text: the token ids of all rows; emitted tokens are appended.
        noise: for sampling; `None` chooses the most likely token.
    """

    choosing: Choosing | None = None

    def __init__(
        self,
        requests: Sequence[Request],
        stream: Stream,
        processors: Any,
        ends: StopRule,
        text: Text | UnreadText,
        noise: Noise | None,
    ) -> None:
        self.all, self.stream, self.ends, self.text, self.noise = requests, stream, ends, text, noise
        self.processors = [processors_of_row(processors, request.row, len(requests)) for request in requests]
        self.rows: Rows = {}

    def begin(self, rows: Rows, outputs: Outputs) -> None:
        self.rows, self.outputs = rows, outputs
        self.stream.begin_step()
        if self.noise is not None:
            self.noise.forget(min(request.emitted for request in self.all if not request.finished))

    def emit(self, row: int, token: int) -> bool:
        request, _ = self.rows[row]
        request.tokens.append(token)
        self.text.append(request.row, token)
        request.finished = self.ends(request)
        self.stream.flush()
        edited = self.text.edited(request.row, request.emitted)
        if edited is not None:  # plain decoding goes on with it, and returns it
            request.tokens[request.prompt_length :] = edited
        return request.finished or request.tokens[-1] != token


class TokenByToken(OnText):
    """Runs processors and the stop rule once per emitted token, on the row's text so far.

    Args:
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
        super().__init__(requests, stream, processors, ends, text, noise)
        self.processors = [without_sort(each, text.device) for each in self.processors]
        self.record = record
        record.scores, record.logits = [[] for _ in requests], [[] for _ in requests]

    def choose(self, row: int, node: int) -> int:
        request, _ = self.rows[row]
        logits = self.outputs.at(row, node)
        token = self._pick(row, node, self._scored(request.row, logits))
        if request.logprobs is not None:
            request.logprobs.emit(logits, token)
        return token

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

    def _pick(self, row: int, node: int, scores: torch.Tensor) -> int:
        """A token from [1, V] scores after a node of a row."""
        if self.noise is None:
            return int(scores.argmax(-1).item())
        request, _ = self.rows[row]
        noise = self.noise.at(request.emitted, scores.shape[-1], scores.dtype, certain=True)
        return choose(scores.softmax(-1), noise if len(self.all) == 1 else noise.narrow(0, request.row, 1))[0]
