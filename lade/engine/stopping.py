"""Stop rules: lengths and EOS tokens on the host, or the stopping criteria of transformers."""

from __future__ import annotations

from typing import Any, Protocol

from lade.core.request import Request
from lade.engine.purity import ROW_PURE_CRITERIA
from lade.engine.scores import Record
from lade.engine.text import Text


class StopRule(Protocol):
    """Whether a request has finished."""

    def __call__(self, request: Request) -> bool:
        """Called once per emitted token, which is the request's last one."""
        ...


class HostRule:
    """Stops at the request's limit and at EOS tokens; looks at nothing on the device."""

    def __init__(self, eos: frozenset[int]) -> None:
        self.eos = eos

    def __call__(self, request: Request) -> bool:
        return request.tokens[-1] in self.eos or request.emitted >= request.limit


class Criteria:
    """The stopping criteria of transformers, called row by row with the arguments of plain decoding.

    Args:
        record: the scores, handed over as a tuple of their own per token, since a criterion may keep it; `None` where
            all criteria are of classes that read none.
    """

    def __init__(self, criteria: Any, text: Text, record: Record) -> None:
        self.criteria, self.text, self.record = criteria, text, record
        self.reads_scores = record.wants_scores and any(type(each) not in ROW_PURE_CRITERIA for each in criteria)

    def __call__(self, request: Request) -> bool:
        scores = tuple(self.record.scores[request.row]) if self.reads_scores else None
        return bool(self.criteria(self.text.of(request.row), scores).all())
