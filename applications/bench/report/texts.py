"""Diversity and log-likelihood of the texts, as a table. Knows rows only."""

from collections.abc import Sequence

from lade.applications.bench.report.rows import Row
from lade.applications.bench.report.texttable import NONE, TextTable


def texts(rows: Sequence[Row]) -> TextTable:
    telling = [row for row in rows if row.text_measures or row.log_likelihood is not None]
    names = list(dict.fromkeys(name for row in telling for name in row.text_measures))
    return TextTable(
        "Texts",
        "Of the new tokens, averaged over prompts. Entropy of n-grams in nats; distinct: different n-grams over all; "
        "repetition: 4-grams that occur earlier; diversity: the product of distinct 2 to 4; log-likelihood: mean "
        "per token under the reference model, in nats.",
        ("Task", "Method", *names, "log-likelihood"),
        tuple(
            (
                row.task,
                row.method,
                *(_figure(row.text_measures.get(name)) for name in names),
                _figure(row.log_likelihood),
            )
            for row in telling
        ),
        labels=2,
    )


def _figure(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"
