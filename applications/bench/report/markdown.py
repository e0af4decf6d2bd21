"""A report as Markdown, with links to the plots. Knows documents only."""

from collections.abc import Iterator, Sequence

from lade.applications.bench.report.document import ReportDocument
from lade.applications.bench.report.texttable import TextTable


def markdown(document: ReportDocument) -> str:
    return "\n".join(_lines(document)) + "\n"


def _lines(document: ReportDocument) -> Iterator[str]:
    yield from (f"# {document.title}", "")
    yield from (*(f"- {name}: {value}" for name, value in document.heading), "")
    for picture in document.pictures:
        yield from (f"![{picture.caption}]({picture.name})", "")
    for section in document.sections:
        yield from (f"## {section.title}", "")
        yield from (section.headline, "") if section.headline else ()
        for table in (*section.tables, *section.details):
            yield from (f"### {table.title}", table.note, "", *lines_of(table), "")
    if document.notes:
        yield from ("## Notes", *(f"- {note}" for note in document.notes), "")
    yield from ("## The run", *(f"- {name}: {value}" for name, value in document.facts))


def lines_of(table: TextTable) -> Iterator[str]:
    yield _line(table.header)
    yield _line(["---"] * table.labels + ["---:"] * (len(table.header) - table.labels))
    yield from map(_line, table.rows)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
