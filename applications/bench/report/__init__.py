"""The report of a bench, from its files alone: a summary, Markdown, plots and one HTML page."""

from lade.applications.bench.report.files import build
from lade.applications.bench.report.report import BenchReport

__all__ = ["BenchReport", "build"]
