"""A report's figures as CSV, and its main tables as LaTeX. Knows findings and documents."""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import StringIO
from typing import Any

from lade.applications.bench.report.conditions import Condition
from lade.applications.bench.report.findings import Findings
from lade.applications.bench.report.rows import Row, Speed, by, speeds
from lade.applications.bench.report.texttable import TextTable
from lade.applications.interval import Estimate

ALL = "all"  # instead of a task or a category
LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "×": r"$\times$",
    "–": "--",
    "α": r"$\alpha$",
    "≠": r"$\neq$",
    "<": "$<$",
    ">": "$>$",
    "·": r"$\cdot$",
    "µ": r"\textmu{}",
}


def csv_of(findings: Findings) -> str:
    """One line for each condition, task, category and method; empty cells where there is no figure.

    Lines over all categories, or all tasks, have the name `all` there.
    """
    return as_csv(list(lines_of(findings)))


def as_csv(lines: Sequence[Mapping[str, Any]]) -> str:
    """Lines with the same names, below a header."""
    text = StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def lines_of(findings: Findings) -> Iterator[dict[str, Any]]:
    for condition, records in findings.records.items():
        for task, own in by(records, lambda record: record.task).items():
            categories = by(own, lambda record: record.category)
            for category, members in categories.items() if len(categories) > 1 else ():
                yield from _lines_of(findings, condition, task, category, speeds(members).values())
            rows = [row for row in findings.of(condition) if row.task == task]
            yield from _lines_of(findings, condition, task, ALL, rows)
        yield from _lines_of(findings, condition, ALL, ALL, findings.overall[condition].values())


def _lines_of(
    findings: Findings, condition: Condition, task: str, category: str, found: Iterable[Speed]
) -> Iterator[dict[str, Any]]:
    return (line_of(findings.run, condition, task, category, speed) for speed in found)


def line_of(run: Mapping[str, Any], condition: Condition, task: str, category: str, speed: Speed) -> dict[str, Any]:
    low, high = speed.tokens_per_second_range or (None, None)
    return {
        "model": run.get("model"),
        "dtype": run.get("dtype"),
        **vars(condition),
        "task": task,
        "category": category,
        "method": speed.method,
        "compared_with": speed.compared_with,
        "runs": speed.runs,
        **_estimate("speed_ratio", speed.speed_ratio),
        "tokens_per_second": speed.tokens_per_second,
        "tokens_per_second_p10": low,
        "tokens_per_second_p90": high,
        "mean_accepted_tokens": speed.tokens_per_step,
        **_estimate("acceptance_rate", speed.acceptance_rate),
        "mean_forward_tokens": speed.mean_forward_tokens if isinstance(speed, Row) else None,
        "same_text": speed.identical if isinstance(speed, Row) else None,
    }


def _estimate(name: str, found: Estimate | None) -> dict[str, float | None]:
    values = (None, None, None) if found is None else (found.median, found.low, found.high)
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def latex(title: str, tables: Sequence[TextTable]) -> str:
    """Tables for a paper; they need the package booktabs."""
    parts = [f"% {' '.join(title.split())}", "% needs \\usepackage{booktabs}"]
    return "\n".join([*parts, *(line for table in tables for line in ("", *_table(table)))]) + "\n"


def _table(table: TextTable) -> Iterator[str]:
    columns = "l" * table.labels + "r" * (len(table.header) - table.labels)
    yield r"\begin{table}"
    yield r"\centering"
    yield f"\\caption{{{escaped(table.title)}. {escaped(table.note)}}}"
    yield f"\\begin{{tabular}}{{{columns}}}"
    yield r"\toprule"
    yield _cells(table.header)
    yield r"\midrule"
    yield from map(_cells, table.rows)
    yield r"\bottomrule"
    yield r"\end{tabular}"
    yield r"\end{table}"


def _cells(cells: Sequence[str]) -> str:
    return f"{' & '.join(map(escaped, cells))} \\\\"


def escaped(text: str) -> str:
    """Text for LaTeX: no character of it is a command."""
    return "".join(LATEX.get(sign, sign) for sign in " ".join(text.split()))
