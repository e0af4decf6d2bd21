"""A leaderboard as files and for the terminal. Knows boards only."""

from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from lade.applications.bench.report.exports import latex
from lade.applications.bench.report.leaderboard import Board, Leaderboard, cells
from lade.applications.bench.report.markdown import lines_of
from lade.applications.bench.report.page import downloads, rendered
from lade.files.atomic import put_in_place

STEM, TEMPLATE = "leaderboard", "leaderboard.html.jinja"


def write(found: Leaderboard, folder: Path) -> Path:
    """Write leaderboard.html, .md, .csv and .tex; returns the page's path."""
    markdown, tables = "\n".join(_markdown(found)) + "\n", latex(found.title, [board.table for board in found.boards])
    page = rendered(TEMPLATE, document=found, files=downloads(STEM, found.csv, markdown, tables))
    for suffix, text in (("md", markdown), ("csv", found.csv), ("tex", tables), ("html", page)):
        put_in_place(folder / f"{STEM}.{suffix}", text.encode())
    return folder / f"{STEM}.html"


def _markdown(found: Leaderboard) -> Iterator[str]:
    yield f"# {found.title}"
    for board in found.boards:
        yield from ("", f"## {board.title}", *(f"- {name}: {value}" for name, value in board.heading))
        yield from ("", board.table.note, "", *lines_of(board.table))


def terminal_table(board: Board) -> Table:
    """For 80 columns: without the single tasks."""
    table = Table(title=board.title)
    for name in ("#", "method", "run"):
        table.add_column(name, overflow="fold")
    for name in ("× plain (95%)", "tokens/s", "S"):
        table.add_column(name, justify="right", no_wrap=True)
    for place, entry in enumerate(board.entries, 1):
        number, method, run, speed, _, accepted, *_ = cells(place, entry, ())
        table.add_row(number, method, run, speed, f"{entry.speed.tokens_per_second:.1f}", accepted)
    return table
