"""A drafter around another one, for those that differ in a part, and one that drafts nothing. Knows no process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lade.core.drafter import Drafter, Predictions
from lade.core.request import Request, Verdict
from lade.core.tree import Draft


class Nothing:
    """Drafts nothing; that of a rank that takes drafts or texts."""

    def start(self, request: Request) -> None: ...

    def draft(self, requests: Sequence[Request], depths: Sequence[int]) -> list[Draft]:
        return []

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        predictions: Predictions,
    ) -> None: ...

    def pause(self) -> None: ...

    def stop(self, request: Request) -> None: ...

    def end(self) -> Mapping[str, int]:
        return {}


class Wrapped:
    """Drafts, and does all else, as the drafter inside."""

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner
        self.warm_table = getattr(inner, "warm_table", None)
        self.reads_likeliest = getattr(inner, "reads_likeliest", False)

    def start(self, request: Request) -> None:
        self.inner.start(request)

    def draft(self, requests: Sequence[Request], depths: Sequence[int]) -> list[Draft]:
        return self.inner.draft(requests, depths)

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        predictions: Predictions,
    ) -> None:
        self.inner.observe(requests, drafts, verdicts, predictions)

    def pause(self) -> None:
        self.inner.pause()

    def stop(self, request: Request) -> None:
        self.inner.stop(request)

    def end(self) -> Mapping[str, int]:
        return self.inner.end()
