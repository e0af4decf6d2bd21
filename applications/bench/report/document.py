"""A report, before rendering: facts, notes, plots, and tables in sections. Knows findings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lade.applications.bench.report.conditions import Condition
from lade.applications.bench.report.details import detail_tables
from lade.applications.bench.report.findings import Findings
from lade.applications.bench.report.layout import speed_tables
from lade.applications.bench.report.pictures import Picture
from lade.applications.bench.report.texttable import TextTable

LOCAL = ("out",)  # paths of the machine


@dataclass(frozen=True)
class Section:
    title: str
    tables: list[TextTable]


@dataclass(frozen=True)
class ReportDocument:
    title: str
    facts: list[tuple[str, str]]
    notes: list[str]
    sections: list[Section]
    pictures: Mapping[Picture, bytes]


def document_of(findings: Findings, notes: Sequence[str], pictures: Mapping[Picture, bytes]) -> ReportDocument:
    return ReportDocument(
        title_of(findings),
        list(facts(findings.run)),
        list(notes),
        [_section(condition, findings) for condition in findings.records],
        pictures,
    )


def _section(condition: Condition, findings: Findings) -> Section:
    details = detail_tables(findings.of(condition), findings.records[condition])
    return Section(str(condition), [*speed_tables(condition, findings), *details])


def title_of(findings: Findings) -> str:
    """The model, its tasks and its prompts. A widened model is always labelled."""
    records = [record for members in findings.records.values() for record in members]
    prompts = {(record.task, record.prompt_id) for record in records}
    repeats = 1 + max(record.repeat for record in records)
    model = f"{findings.run.get('model', 'unnamed model')}{' (widened)' if findings.run.get('widened_from') else ''}"
    tasks = ", ".join(dict.fromkeys(record.task for record in records))
    return f"{model} · {tasks}, {len(prompts)} prompts × {repeats}"


def facts(run: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The settings of the run as (dotted name, value)."""
    for name, value in run.items():
        if name in LOCAL or value is None:
            continue
        if isinstance(value, Mapping):
            yield from facts(value, f"{prefix}{name}.")
        else:
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            yield f"{prefix}{name}", text
