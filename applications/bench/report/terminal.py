"""The rows as one table for a terminal of 80 columns. Knows rows only."""

from collections.abc import Sequence

from rich.table import Table

from lade.applications.bench.report.rows import Row
from lade.applications.bench.report.texttable import NO_INTERVAL, NONE, ratio_between, versus

CAPTION = (
    "S: new tokens / forwards after the prefill (mean accepted tokens); T: tokens in such a forward; "
    f"same text: runs with plain decoding's; {NO_INTERVAL}"
)
SHORT = {"temperature": "temp"}


def table_of(rows: Sequence[Row], title: str) -> Table:
    """Task, temperature, batch and context are columns if the rows differ in them."""
    varied = [
        name for name in ("task", "temperature", "batch", "context") if len({getattr(row, name) for row in rows}) > 1
    ]
    table = Table(title=title, caption=CAPTION, padding=(0, 0) if len(varied) > 1 else (0, 1))
    for name in (*varied, "method"):
        table.add_column(SHORT.get(name, name), overflow="fold", min_width=4)
    for name in ("S", "T", "tokens/s", f"{versus(row.compared_with for row in rows)} (95%)", "same text"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(_text(getattr(row, name)) for name in varied), *_cells(row))
    return table


def _text(value: object) -> str:
    return NONE if value is None else str(value)


def _cells(row: Row) -> list[str]:
    return [
        row.named,
        f"{row.tokens_per_step:.2f}",
        f"{row.mean_forward_tokens:.1f}",
        f"{row.tokens_per_second:.1f}",
        ratio_between(row.speed_ratio),
        f"{row.identical}/{row.runs}",
    ]
