"""Acceptance of drafts, as tables: by source and by depth. Knows rows only."""

from collections.abc import Iterable

from lade.applications.bench.report.rows import Row
from lade.applications.bench.report.texttable import NO_INTERVAL, TextTable, between, share

DEPTHS = 10  # columns of the table by depth


def rates(rows: Iterable[Row]) -> TextTable:
    return TextTable(
        "Acceptance rate",
        "α: share of positions with drafts where one is accepted; mean accepted tokens: new tokens / forwards after "
        f"the prefill. Both with 95% intervals over prompts; {NO_INTERVAL}.",
        ("Task", "Method", "α", "mean accepted tokens", "repeated 4-grams"),
        tuple(
            (
                row.task,
                row.method,
                between(row.acceptance_rate),
                between(row.block_efficiency),
                f"{row.repeated_4grams:.1%}",
            )
            for row in rows
            if row.acceptance_rate is not None
        ),
        labels=2,
    )


def sources(rows: Iterable[Row]) -> TextTable:
    return TextTable(
        "Acceptance by source",
        "Draft tokens sent through the model, compared with its choice, and chosen by it; acceptance: "
        "accepted / verified.",
        ("Task", "Method", "Source", "proposed", "verified", "accepted", "acceptance", "repeated 4-grams"),
        tuple(
            (
                row.task,
                row.method,
                source,
                f"{row.proposed[source]:,}",
                f"{row.verified.get(source, 0):,}",
                f"{row.accepted.get(source, 0):,}",
                share(row.accepted.get(source, 0), row.verified.get(source, 0)),
                f"{row.repeated_4grams:.1%}",
            )
            for row in rows
            for source in row.sources
        ),
        labels=3,
    )


def depths(rows: Iterable[Row]) -> TextTable:
    telling = [row for row in rows if row.verified_by_depth]
    deepest = min(DEPTHS, max((max(row.verified_by_depth) for row in telling), default=0))
    return TextTable(
        "Acceptance by depth",
        "Accepted / verified draft tokens by distance from the last token of the text"
        f"{f', down to {DEPTHS}' if deepest == DEPTHS else ''}.",
        ("Task", "Method", *(str(depth) for depth in range(1, deepest + 1)), "repeated 4-grams"),
        tuple(
            (
                row.task,
                row.method,
                *(
                    share(row.accepted_by_depth.get(depth, 0), row.verified_by_depth.get(depth, 0))
                    for depth in range(1, deepest + 1)
                ),
                f"{row.repeated_4grams:.1%}",
            )
            for row in telling
        ),
        labels=2,
    )
