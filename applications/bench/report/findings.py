"""All figures of a run, computed once from its records, for the tables, the plots and the summary."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lade.applications.bench.records import Record
from lade.applications.bench.report.conditions import Condition, by_condition
from lade.applications.bench.report.results import Results
from lade.applications.bench.report.rows import Row, Speed, by, speeds, summarise
from lade.applications.bench.samples import Sample


@dataclass(frozen=True)
class Findings:
    run: dict[str, Any]  # model, machine, versions, options
    records: dict[Condition, list[Record]]
    rows: list[Row]  # by condition, task and method
    overall: dict[Condition, dict[str, Speed]]  # by method, all tasks together
    samples: list[Sample]

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(row.method for row in self.rows))

    @property
    def columns(self) -> Callable[[Record], str]:
        """The part of a record's prompt: its task, or its category where a single task has several."""
        records = [record for members in self.records.values() for record in members]
        if len({record.task for record in records}) == 1 and len({record.category for record in records}) > 1:
            return lambda record: record.category
        return lambda record: record.task

    def parts(self, condition: Condition) -> dict[str, dict[str, Speed]]:
        """The speed of every method, by column."""
        return {name: speeds(members) for name, members in by(self.records[condition], self.columns).items()}

    def of(self, condition: Condition) -> list[Row]:
        return [row for row in self.rows if row.condition == condition]


def find(results: Results) -> Findings:
    conditions = by_condition(results.records)
    return Findings(
        run=results.run,
        records=conditions,
        rows=summarise(results.records),
        overall={condition: speeds(records) for condition, records in conditions.items()},
        samples=results.samples,
    )
