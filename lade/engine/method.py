"""The protocol of drafting methods that need a model (`lade.entry.methods`)."""

from __future__ import annotations

from typing import Any, Protocol

from lade.core.drafter import Drafter
from lade.target.call import Call
from lade.target.model import HFTarget


class Method(Protocol):
    """Drafts with a model. Greedy text and the distribution of sampled text stay those of plain decoding."""

    @property
    def likeliest(self) -> bool:
        """Whether drafts are not random even where the target samples; a seed then gives plain decoding's text."""
        ...

    def check(self, target: Any) -> None:
        """ValueError about an argument with which this target can never decode."""
        ...

    def reason(self, call: Call) -> str | None:
        """Why this call must fall back to plain decoding, or `None`."""
        ...

    def drafter(self, call: Call, target: HFTarget) -> Drafter:
        """The drafter of a call."""
        ...
