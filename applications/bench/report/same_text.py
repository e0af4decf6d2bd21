"""The lossless audit and the scores, as tables. Knows rows and the divergences of records."""

from collections.abc import Iterable, Sequence

from lade.applications.bench.records import Record
from lade.applications.bench.report.rows import Row
from lade.applications.bench.report.texttable import NONE, TextTable, share

PARTINGS = 40  # divergences in the table, at most


def audit(rows: Iterable[Row]) -> TextTable:
    return TextTable(
        "Same text as plain decoding",
        "Divergences: greedy texts that differ from plain decoding's. A near-tie explains one if rounding alone can "
        "change the choice; not explained must be 0. Gap: the largest between the two best logits there. A method "
        "that decodes another distribution is compared with the method in brackets, and not audited. Sampled drafts "
        "keep the distribution of sampled texts, not each text.",
        ("Task", "Method", "identical", "divergences", "not explained", "widest gap", "in ulp", "decoded plainly"),
        tuple(
            (
                row.task,
                row.named,
                f"{row.identical}/{row.runs} ({row.identical / row.runs:.1%})",
                str(row.divergences),
                str(row.unexplained),
                f"{row.widest_gap:.2g}" if row.divergences else NONE,
                f"{row.widest_gap_ulps:.1f}" if row.divergences else NONE,
                "; ".join(f"{count}: {reason}" for reason, count in row.fallbacks.items()) or NONE,
            )
            for row in rows
        ),
        labels=2,
    )


def partings(records: Iterable[Record]) -> TextTable:
    found = [(record, record.parting) for record in records if record.parting is not None]
    found.sort(key=lambda pair: (pair[1]["explained"], -pair[1]["ulps"]))
    more = f" The {PARTINGS} widest of {len(found)}; results.jsonl has all." if len(found) > PARTINGS else ""
    return TextTable(
        "First divergences",
        f"Where a greedy text differs from plain decoding's, and the gap between the two best logits there.{more}",
        ("Task", "Method", "Prompt", "turn", "position", "gap", "in ulp", "explained"),
        tuple(
            (
                record.task,
                record.method,
                str(record.prompt_id),
                str(record.turn),
                str(parting["index"]),
                f"{parting['gap']:.2g}",
                f"{parting['ulps']:.1f}",
                "near-tie" if parting["explained"] else "NO",
            )
            for record, parting in found[:PARTINGS]
        ),
        labels=3,
    )


def scores(rows: Sequence[Row]) -> TextTable:
    able = any_right(rows)
    return TextTable(
        "Right answers",
        "Whether the quality is unchanged; not a measure of the model. Changed: right in one of the two only. Tasks "
        "without any right answer are left out.",
        ("Task", "Method", "right", "plain's right", "changed"),
        tuple(
            (
                row.task,
                row.method,
                f"{row.correct}/{row.scored} ({share(row.correct, row.scored)})",
                f"{row.plain_correct}/{row.scored} ({share(row.plain_correct, row.scored)})",
                str(row.score_changes),
            )
            for row in rows
            if row.scored and row.task in able
        ),
        labels=2,
    )


def any_right(rows: Iterable[Row]) -> set[str]:
    """The tasks in which some method gives a right answer."""
    return {row.task for row in rows if row.correct}
