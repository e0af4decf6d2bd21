"""Lines below the table, only where there is something to report. Knows rows only."""

from collections.abc import Sequence

from lade.applications.bench.report.rows import Row


def notes_of(rows: Sequence[Row]) -> list[str]:
    """The notes; sources and drafting only for a single task and condition, since the report has tables of them."""
    single = len({(row.task, row.condition) for row in rows}) == 1
    return [
        *(sources(rows) + drafting(rows) if single else []),
        *warm(rows),
        *fallbacks(rows),
        *partings(rows),
        *scores(rows),
    ]


def subject(row: Row, rows: Sequence[Row]) -> str:
    """The row's method, with task and condition if the rows differ in them."""
    parts = [
        row.method,
        *([row.task] if len({other.task for other in rows}) > 1 else []),
        *([str(row.condition)] if len({other.condition for other in rows}) > 1 else []),
    ]
    return " · ".join(parts)


def sources(rows: Sequence[Row]) -> list[str]:
    """Draft counts of each source, in decreasing order of accepted tokens."""
    return [
        f"{subject(row, rows)}: accepted/verified/proposed: "
        + ", ".join(
            f"{source} {row.accepted.get(source, 0)}/{row.verified.get(source, 0)}/{row.proposed[source]}"
            for source in row.sources
        )
        + f"; {row.repeated_4grams:.1%} repeated 4-grams"
        for row in rows
        if row.proposed
    ]


def drafting(rows: Sequence[Row]) -> list[str]:
    return [
        f"{subject(row, rows)}: choosing a draft took {row.draft_microseconds:.0f} µs a step, "
        f"{row.draft_share:.1%} of plain decoding's forward"
        for row in rows
        if row.draft_microseconds
    ]


def warm(rows: Sequence[Row]) -> list[str]:
    """The cost of the warm table, once for each method."""
    costs = {row.method: row.warm_seconds for row in rows if row.warm_seconds is not None}
    return [f"{method}: the warm table took {seconds:.2f} s, once" for method, seconds in costs.items()]


def fallbacks(rows: Sequence[Row]) -> list[str]:
    return [
        f"{subject(row, rows)}: {count} of {row.runs} runs decoded plainly: {reason}"
        for row in rows
        for reason, count in row.fallbacks.items()
    ]


def partings(rows: Sequence[Row]) -> list[str]:
    return [
        f"{subject(row, rows)}: {row.divergences} of {row.runs} texts part from plain decoding's, {_where(row)}; "
        f"widest top-2 gap {row.widest_gap:.2g} ({row.widest_gap_ulps:.1f} ulp)"
        for row in rows
        if row.divergences
    ]


def _where(row: Row) -> str:
    explained = row.divergences - row.unexplained
    return f"{explained} of them at a near-tie, {row.unexplained} elsewhere" if row.unexplained else "all at near-ties"


def scores(rows: Sequence[Row]) -> list[str]:
    return [
        f"{subject(row, rows)}: {row.correct} of {row.scored} answers right, plain decoding's {row.plain_correct}; "
        f"{row.score_changes} changed"
        for row in rows
        if row.scored and row.score_changes
    ]
