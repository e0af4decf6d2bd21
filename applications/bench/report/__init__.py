"""What a bench found, from its files alone: a summary, Markdown, pictures and one HTML page."""

from lade.applications.bench.report.files import build
from lade.applications.bench.report.report import Report

__all__ = ["Report", "build"]
