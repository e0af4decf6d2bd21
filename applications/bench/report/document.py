"""A report, before rendering: heading, plots, tables in sections, notes, facts. Knows findings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lade.applications.bench.report.conditions import Condition
from lade.applications.bench.report.details import detail_tables
from lade.applications.bench.report.exports import csv_of, latex
from lade.applications.bench.report.findings import Findings
from lade.applications.bench.report.heading import heading, model_of
from lade.applications.bench.report.layout import headline, results_table, speed_tables
from lade.applications.bench.report.pictures import Picture
from lade.applications.bench.report.sample_texts import SampleTexts, sample_texts
from lade.applications.bench.report.single import prompt_tables
from lade.applications.bench.report.texttable import TextTable

LOCAL = ("out",)  # paths of the machine


@dataclass(frozen=True)
class Section:
    """One condition.

    Attributes:
        headline: one sentence; empty without a comparison.
        tables: the main ones; `details`: the others, folded on the page.
        prompts: a table for each task with every prompt, on the page only.
    """

    title: str
    headline: str
    tables: list[TextTable]
    details: list[TextTable]
    prompts: list[TextTable]


@dataclass(frozen=True)
class ReportDocument:
    title: str
    heading: list[tuple[str, str]]
    facts: list[tuple[str, str]]
    notes: list[str]
    sections: list[Section]
    pictures: Mapping[Picture, bytes]
    samples: list[SampleTexts]
    csv: str
    latex: str


def document_of(findings: Findings, notes: Sequence[str], pictures: Mapping[Picture, bytes]) -> ReportDocument:
    title, sections = title_of(findings), [_section(condition, findings) for condition in findings.records]
    return ReportDocument(
        title=title,
        heading=heading(findings),
        facts=list(facts(findings.run)),
        notes=list(notes),
        sections=sections,
        pictures=pictures,
        samples=sample_texts(findings),
        csv=csv_of(findings),
        latex=latex(title, [_titled(table, section.title) for section in sections for table in section.tables]),
    )


def _section(condition: Condition, findings: Findings) -> Section:
    records = findings.records[condition]
    return Section(
        str(condition),
        headline(condition, findings),
        [results_table(condition, findings), *speed_tables(condition, findings)],
        detail_tables(findings.of(condition), records, findings.run),
        prompt_tables(records),
    )


def _titled(table: TextTable, condition: str) -> TextTable:
    return replace(table, title=f"{table.title}, {condition}")


def title_of(findings: Findings) -> str:
    """The model, its tasks and its prompts."""
    records = [record for members in findings.records.values() for record in members]
    prompts = {(record.task, record.prompt_id) for record in records}
    repeats = 1 + max(record.repeat for record in records)
    tasks = ", ".join(dict.fromkeys(record.task for record in records))
    return f"{model_of(findings.run)} · {tasks}, {len(prompts)} prompts × {repeats}"


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
