"""When a request has finished: asked of the host where it can know, of transformers' criteria otherwise."""

from __future__ import annotations

from typing import Any, Protocol

from lade.core.request import Request
from lade.engine.scores import Record
from lade.engine.text import Text


class StopRule(Protocol):
    """Whether a request has finished."""

    def __call__(self, request: Request) -> bool:
        """Asked once per emitted token, which is the last one of the request's text."""
        ...


class HostRule:
    """A length, and tokens that end a text: the host knows both."""

    def __init__(self, eos: frozenset[int]) -> None:
        self.eos = eos

    def __call__(self, request: Request) -> bool:
        return request.tokens[-1] in self.eos or request.emitted >= request.limit


class Criteria:
    """transformers' stopping criteria, asked as plain decoding asks them, row by row."""

    def __init__(self, criteria: Any, text: Text, record: Record) -> None:
        self.criteria, self.text, self.record = criteria, text, record

    def __call__(self, request: Request) -> bool:
        scores = tuple(self.record.scores[request.row]) if self.record.wants_scores else None
        return bool(self.criteria(self.text.of(request.row), scores).all())
