"""Diversity and log-likelihood of the texts, as a table. Knows rows only."""

from collections.abc import Mapping, Sequence
from typing import Any

from lade.applications.bench.report.rows import Row
from lade.applications.bench.report.texttable import NONE, TextTable
from lade.applications.text_measures import UNITS


def texts(rows: Sequence[Row], run: Mapping[str, Any]) -> TextTable:
    unit = UNITS.get(run.get("options", {}).get("text_units"), UNITS["tokens"])
    telling = [row for row in rows if row.text_measures or row.log_likelihood is not None]
    names = list(dict.fromkeys(name for row in telling for name in row.text_measures))
    return TextTable(
        "Texts",
        f"Of each answer, averaged over prompts. Entropy of n-grams: {unit.entropy}; distinct: different n-grams / "
        "all; repetition: 4-grams that occur earlier; diversity: the product of distinct 2 to 4; log-likelihood: mean "
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
