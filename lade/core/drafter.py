"""What the decode loop asks of a drafter, whatever its method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from lade.core.request import Request, Verdict
from lade.core.tree import Draft


class Predictions(Protocol):
    """What a drafter may read of a forward's outputs."""

    def greedy(self, slot: int, node: int) -> int:
        """The model's most likely next token after `node`, which must be one of the draft's queries."""
        ...

    def top(self, slot: int, node: int) -> tuple[list[int], list[float]]:
        """The most likely next tokens after `node` and their probabilities, likeliest first."""
        ...


class Drafter(Protocol):
    """Guesses what might come next. One drafter serves many requests; `request.state` is its place to remember."""

    def start(self, request: Request) -> None:
        """Set up `request.state`. Called once, after the request's first token."""
        ...

    def draft(self, requests: Sequence[Request], depths: Sequence[int]) -> list[Draft]:
        """One draft per request, of no more nodes than its room.

        No node of draft i may be deeper than `depths[i]`, which is at least 0.
        """
        ...

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        predictions: Predictions,
    ) -> None:
        """Learn from a step. `requests[i].tokens` already ends with the tokens of `verdicts[i]`."""
        ...

    def end(self) -> Mapping[str, int]:
        """The call is over. Returns what decided about the sizes of drafts, and how often."""
        ...


def roots(requests: Sequence[Request]) -> list[Draft]:
    """No draft at all: the last token of each text, alone."""
    return [Draft.alone(request.tokens[-1]) for request in requests]
