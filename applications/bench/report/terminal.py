"""The rows as one table for a terminal. Knows rows only."""

from collections.abc import Sequence

from rich.table import Table

from lade.applications.bench.report.rows import Row
from lade.applications.bench.report.texttable import NO_INTERVAL, NONE, ratio_between, versus

CAPTION = (
    "S new tokens / forwards after the prefill; T tokens in such a forward; α share of places with drafts where one "
    "is accepted; τ tokens emitted per step; warm: one-time cost of the warm table; "
    f"{NO_INTERVAL}"
)
SHORT = {"temperature": "temp"}


def table_of(rows: Sequence[Row], title: str) -> Table:
    """Task, temperature, batch and context are columns if the rows differ in them."""
    varied = [
        name for name in ("task", "temperature", "batch", "context") if len({getattr(row, name) for row in rows}) > 1
    ]
    others = list(dict.fromkeys(label for row in rows for label in row.baseline_ratios))
    table = Table(title=title, caption=CAPTION)
    for name in (*varied, "method"):
        table.add_column(SHORT.get(name, name), overflow="fold")
    for name in (
        "S",
        "T",
        "α",
        "τ",
        "tokens/s",
        f"{versus(row.compared_with for row in rows)} (95%)",
        *(f"× {label}" for label in others),
        "host",
        "warm",
        "identical",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(_text(getattr(row, name)) for name in varied), *_cells(row, others))
    return table


def _text(value: object) -> str:
    return NONE if value is None else str(value)


def _cells(row: Row, others: Sequence[str]) -> list[str]:
    return [
        row.named,
        f"{row.tokens_per_step:.3f}",
        f"{row.mean_forward_tokens:.1f}",
        "" if row.acceptance_rate is None else f"{row.acceptance_rate.median:.1%}",
        "" if row.block_efficiency is None else f"{row.block_efficiency.median:.2f}",
        f"{row.tokens_per_second:.1f}",
        ratio_between(row.speed_ratio),
        *(ratio_between(row.baseline_ratios.get(label)) for label in others),
        f"{row.host_share:.1%}",
        "" if row.warm_seconds is None else f"{row.warm_seconds:.2f} s",
        f"{row.identical}/{row.runs}",
    ]
