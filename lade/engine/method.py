"""What a call asks of a way of drafting that needs a model (`lade.entry.methods`)."""

from __future__ import annotations

from typing import Any, Protocol

from lade.core.drafter import Drafter
from lade.target.call import Call
from lade.target.model import HFTarget


class Method(Protocol):
    """A way of drafting that needs a model. Its drafts keep greedy text, and the distribution of sampled text."""

    @property
    def likeliest(self) -> bool:
        """Whether drafts are certain even where the target samples; its text is then plain decoding's with the seed."""
        ...

    def check(self, target: Any) -> None:
        """ValueError, which names the argument, where this target can never be served."""
        ...

    def reason(self, call: Call) -> str | None:
        """Why this call must decode plainly, or `None`."""
        ...

    def drafter(self, call: Call, target: HFTarget) -> Drafter:
        """The drafter of a call."""
        ...
