"""The protocol between the decode loop and drafters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from lade.core.request import Request, Verdict
from lade.core.tree import Draft


class Predictions(Protocol):
    """What a drafter reads of a forward's outputs."""

    def greedy(self, slot: int, node: int) -> int:
        """The model's most likely next token after `node`, which must be one of the draft's queries."""
        ...

    def likeliest(self) -> tuple[np.ndarray, np.ndarray]:
        """[M, k] int32 most likely next tokens and their [M, k] float32 probabilities, likeliest first, by line."""
        ...

    def lines_of(self, slot: int, nodes: Sequence[int]) -> list[int]:
        """The lines of some of the draft's queries."""
        ...


class Drafter(Protocol):
    """Drafts tokens. One drafter serves many requests; `request.state` holds what belongs to one."""

    def start(self, request: Request) -> None:
        """Set up `request.state`. Called once, after the request's first token."""
        ...

    def draft(self, requests: Sequence[Request], depths: Sequence[int]) -> list[Draft]:
        """One draft per request, of at most `request.max_nodes` nodes.

        Args:
            depths: the largest depth of a node, per request, at least 0.
        """
        ...

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        predictions: Predictions,
    ) -> None:
        """Learn from a step; `requests[i].tokens` ends with the tokens of `verdicts[i]`.

        A verdict without tokens teaches nothing: the request has ended with an error.
        """
        ...

    def pause(self) -> None:
        """The running step does not count as a measure of time: its forwards compute prompts too."""
        ...

    def stop(self, request: Request) -> None:
        """Let go of a request that has left its slot, started or not."""
        ...

    def end(self) -> Mapping[str, int]:
        """End the call. Returns how often each reason decided the size of a draft."""
        ...


class Follower(Drafter, Protocol):
    """A drafter that learns from steps whose drafts were made elsewhere, which it neither drafts nor observes."""

    def follow(self, requests: Sequence[Request]) -> None:
        """Take in the texts before such a step."""
        ...

    def learn(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        predictions: Predictions,
    ) -> None:
        """Learn from it, as `observe` does from others."""
        ...


def roots(requests: Sequence[Request]) -> list[Draft]:
    """Empty drafts: the last token of each text is the only node, or some token before the first one of a text."""
    return [Draft.alone(request.tokens[-1] if request.tokens else 0) for request in requests]
