"""Conditions of runs; runs are pooled and compared within one condition only. Knows records only."""

from collections.abc import Iterable
from dataclasses import dataclass

from lade.applications.bench.records import Record


@dataclass(frozen=True, order=True)
class Condition:
    """The varied settings besides methods and tasks."""

    temperature: float
    batch: int
    context: int | None  # tokens that every prompt is cut or filled to; None: prompts keep their length

    def __str__(self) -> str:
        return self.named()

    def named(self, without: str = "") -> str:
        """All fields that are set, except one."""
        parts = {
            "temperature": f"temperature {self.temperature:g}",
            "batch": f"batch {self.batch}",
            "context": "" if self.context is None else f"{self.context:,} tokens of context",
        }
        return " · ".join(text for name, text in parts.items() if text and name != without)


def condition_of(record: Record) -> Condition:
    return Condition(record.temperature, record.batch, record.context)


def by_condition(records: Iterable[Record]) -> dict[Condition, list[Record]]:
    """Records by condition, in increasing order of temperature, batch and context."""
    found: dict[Condition, list[Record]] = {}
    for record in records:
        found.setdefault(condition_of(record), []).append(record)
    return dict(sorted(found.items(), key=lambda item: (item[0].temperature, item[0].batch, item[0].context or 0)))
