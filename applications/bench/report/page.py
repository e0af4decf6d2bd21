"""A report as one HTML page, with embedded plots and no external resources. Knows documents only."""

from base64 import b64encode
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from lade.applications.bench.report.document import ReportDocument

TEMPLATE = "page.html.jinja"


def page(document: ReportDocument) -> str:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["base64"] = lambda content: b64encode(content).decode()
    template = environment.from_string(files(__package__).joinpath(TEMPLATE).read_text(encoding="utf-8"))
    return template.render(document=document)
