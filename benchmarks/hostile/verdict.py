"""The result of one case, and sums over cases. Knows no model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

TOKENS_PER_TIE = 10_000


@dataclass
class CaseVerdict:
    """The result of one comparison.

    Attributes:
        line: the case in one line.
        differences: differences from plain decoding.
        ties: near-ties, where float32 rounding decides.
        reason: why lade fell back to plain decoding; empty if it did not.
        raised: the type of the exception raised by both.
        unsteady: differences of plain decoding from itself; nothing is compared then.
    """

    kind: str
    line: str
    model: str
    differences: list[str] = field(default_factory=list)
    ties: list[str] = field(default_factory=list)
    calls: int = 0
    native: int = 0
    accepted: int = 0
    steps: int = 0
    native_tokens: int = 0
    tokens: int = 0
    reason: str = ""
    raised: str = ""
    unsteady: str = ""
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def count(self, tokens: int, stats: Any) -> None:
        """Add a call and its statistics."""
        self.calls += 1
        self.tokens += tokens
        if stats is None or stats.fallback is not None:
            self.reason = "transformers' other decoding methods" if stats is None else str(stats.fallback)
            return
        self.native += 1
        self.native_tokens += stats.new_tokens
        self.accepted += stats.accepted_tokens
        self.steps += stats.steps


@dataclass
class CaseTally:
    """Sums over cases, by kind."""

    verdicts: list[CaseVerdict] = field(default_factory=list)

    def add(self, verdicts: list[CaseVerdict]) -> None:
        self.verdicts += verdicts

    @property
    def different(self) -> list[CaseVerdict]:
        return [verdict for verdict in self.verdicts if verdict.differences]

    @property
    def too_many_ties(self) -> bool:
        ties = sum(len(verdict.ties) for verdict in self.verdicts)
        return ties > -(-sum(verdict.tokens for verdict in self.verdicts) // TOKENS_PER_TIE)

    def rows(self) -> dict[str, dict[str, Any]]:
        """One row of figures for each kind, and `all`."""
        kinds = sorted({verdict.kind for verdict in self.verdicts})
        parts = {kind: [verdict for verdict in self.verdicts if verdict.kind == kind] for kind in kinds}
        return {kind: _figures(part) for kind, part in (parts | {"all": self.verdicts}).items()}

    def skipped(self) -> dict[str, str]:
        """Models that cannot be built -> why."""
        told = (line for verdict in self.verdicts for line in verdict.skipped)
        return dict(sorted({line.split(": ", 1)[0]: line.split(": ", 1)[1] for line in told}.items()))

    def reasons(self) -> dict[str, int]:
        """Reasons for plain decoding -> number of cases."""
        return dict(
            Counter(verdict.reason.split("(")[0][:70] for verdict in self.verdicts if verdict.reason).most_common()
        )


def _figures(part: list[CaseVerdict]) -> dict[str, Any]:
    def total(name: str) -> int:
        return sum(getattr(verdict, name) for verdict in part)

    steps = total("steps")
    return {
        "cases": len(part),
        "calls": total("calls"),
        "different": sum(bool(verdict.differences) for verdict in part),
        "near_ties": sum(len(verdict.ties) for verdict in part),
        "unsteady": sum(bool(verdict.unsteady) for verdict in part),
        "raised_alike": sum(bool(verdict.raised) for verdict in part),
        "native": sum(verdict.native > 0 for verdict in part),
        "fallback": sum(bool(verdict.reason) and verdict.native == 0 for verdict in part),
        "models": len({verdict.model for verdict in part}),
        "native_models": len({verdict.model for verdict in part if verdict.native}),
        "tokens": total("tokens"),
        "accepted": total("accepted"),
        "tokens_per_step": round(total("native_tokens") / steps, 3) if steps else None,
        "seconds": round(sum(verdict.seconds for verdict in part), 1),
    }
