"""Makes a run's report from the files in its folder, and writes it there. Runs no model."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lade.applications.bench.report.document import document_of, title_of
from lade.applications.bench.report.findings import Findings, find
from lade.applications.bench.report.markdown import markdown
from lade.applications.bench.report.notes import notes_of
from lade.applications.bench.report.page import page
from lade.applications.bench.report.pictures import PICTURES, Picture, drawn
from lade.applications.bench.report.remarks import remarks
from lade.applications.bench.report.report import BenchReport
from lade.applications.bench.report.results import read_results
from lade.applications.bench.report.rows import Row
from lade.applications.bench.report.terminal import table_of
from lade.files.atomic import put_in_place
from lade.files.regularfile import MEBIBYTE, naming, read_bytes

MAX_BYTES = 16 * MEBIBYTE  # of a plot
SUMMARY, MARKDOWN, PAGE, CSV, LATEX = "summary.json", "report.md", "report.html", "report.csv", "report.tex"
FILES = (SUMMARY, MARKDOWN, PAGE, CSV, LATEX)  # besides the pictures
NO_MATPLOTLIB = "they need matplotlib; pip install 'lade-decoding[plot]', then `lade bench-report`"
NO_PICTURES = f"no pictures: {NO_MATPLOTLIB}"
OLD_PICTURES = f"the pictures are an earlier report's, and no new ones were drawn: {NO_MATPLOTLIB}"


def build(folder: Path) -> BenchReport:
    """Write the summary, the report in its formats, and the plots into the folder of a run.

    Needs only results.jsonl and run.json there, of a complete or interrupted run.

    Raises:
        ValueError: one of the two is invalid; names the file, the line and the field.
    """
    findings = find(read_results(folder))
    new = _draw(findings)
    pictures = _drawn_before(folder) if new is None else new
    told = [*remarks(findings), *([] if new is not None else [OLD_PICTURES if pictures else NO_PICTURES])]
    document = document_of(findings, told, pictures)
    report = BenchReport(
        head=findings.run | {"overall": overall(findings)},
        table=table_of(findings.rows, title_of(findings)),
        notes=notes_of(findings.rows) + told,
        rows=[asdict(row) for row in findings.rows],
        brief=brief(findings.rows),
        path=folder / PAGE,
    )
    if new is not None:
        _put_pictures(folder, new)
    put_in_place(folder / MARKDOWN, markdown(document).encode())
    put_in_place(folder / PAGE, page(document).encode())
    put_in_place(folder / CSV, document.csv.encode())
    put_in_place(folder / LATEX, document.latex.encode())
    report.write(folder / SUMMARY)
    return report


def brief(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows without their prompts."""
    return [{name: value for name, value in asdict(row).items() if name != "prompts"} for row in rows]


def overall(findings: Findings) -> list[dict[str, Any]]:
    """Every method over all tasks, by condition."""
    return [
        vars(condition) | asdict(speed) for condition, speeds in findings.overall.items() for speed in speeds.values()
    ]


def _draw(findings: Findings) -> dict[Picture, bytes] | None:
    """The plots; None without matplotlib. Those of an earlier report are kept then."""
    try:
        return drawn(findings)
    except ImportError:
        return None


def _drawn_before(folder: Path) -> dict[Picture, bytes]:
    """The plots of an earlier report in the folder."""
    there = (picture for picture in PICTURES if (folder / picture.name).is_file())
    return {picture: _read(folder / picture.name) for picture in there}


def _read(path: Path) -> bytes:
    with naming(path):
        return read_bytes(path, MAX_BYTES)


def _put_pictures(folder: Path, pictures: Mapping[Picture, bytes]) -> None:
    """Write the plots; those of an earlier report that this one does not have are removed."""
    for picture in PICTURES:
        if picture in pictures:
            put_in_place(folder / picture.name, pictures[picture])
        else:
            (folder / picture.name).unlink(missing_ok=True)
