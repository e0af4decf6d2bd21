"""A report as one HTML page, with embedded plots and downloads, without scripts and external resources.

Knows documents only.
"""

from base64 import b64encode
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from lade.applications.bench.report.document import ReportDocument
from lade.applications.bench.report.markdown import markdown

TEMPLATE = "page.html.jinja"


@dataclass(frozen=True)
class Download:
    """A file inside the page."""

    title: str
    name: str
    kind: str  # the media type
    content: bytes


def page(document: ReportDocument) -> str:
    return rendered(
        TEMPLATE,
        document=document,
        files=downloads("report", csv=document.csv, markdown=markdown(document), latex=document.latex),
    )


def downloads(stem: str, csv: str, markdown: str, latex: str) -> list[Download]:
    return [
        Download("CSV", f"{stem}.csv", "text/csv", csv.encode()),
        Download("Markdown", f"{stem}.md", "text/markdown", markdown.encode()),
        Download("LaTeX", f"{stem}.tex", "application/x-tex", latex.encode()),
    ]


def rendered(template: str, **content: Any) -> str:
    environment = Environment(
        loader=FunctionLoader(_source), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["base64"] = lambda data: b64encode(data).decode()
    return environment.get_template(template).render(**content)


def _source(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
