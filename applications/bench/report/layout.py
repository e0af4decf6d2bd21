"""Speed-ups in the layout of Spec-Bench's leaderboard (arXiv 2401.07851): rows are methods, columns are tasks.

Knows records, no method by name.
"""

from collections.abc import Callable, Mapping, Sequence

from lade.applications.bench.records import Record
from lade.applications.bench.report.conditions import Condition
from lade.applications.bench.report.findings import Findings
from lade.applications.bench.report.rows import Speed, by, speeds
from lade.applications.bench.report.texttable import NO_INTERVAL, NONE, TextTable, ratio, ratio_between

NOTE = (
    "Speed-ups over plain decoding in the same process (×, medians over prompts); #Mean accepted tokens: new tokens / "
    "forwards after the prefill; a method that decodes another distribution is compared with the method in brackets "
    "instead; Overall: all prompts together, with the 95% interval by bootstrap over prompts; "
    f"{NO_INTERVAL}."
)


def speed_tables(condition: Condition, findings: Findings) -> list[TextTable]:
    """A table with tasks as columns, then one with categories for every task that has several."""
    records = findings.records[condition]
    found = [speed_table("Speed by task", records, lambda record: record.task, findings.overall[condition])]
    for task, members in by(records, lambda record: record.task).items():
        if len({record.category for record in members}) > 1:
            title = f"Speed by category of {task}"
            found.append(speed_table(title, members, lambda record: record.category or NONE, speeds(members)))
    return found


def speed_table(
    title: str, records: Sequence[Record], column: Callable[[Record], str], overall: Mapping[str, Speed]
) -> TextTable:
    columns = {name: speeds(members) for name, members in by(records, column).items()}
    others = list(dict.fromkeys(label for speed in overall.values() for label in speed.baseline_ratios))
    return TextTable(
        title,
        NOTE,
        ("Method", *columns, "#Mean accepted tokens", "Overall", *(f"Overall over {label}" for label in others)),
        tuple(
            (
                total.named,
                *(_cell(methods, method) for methods in columns.values()),
                f"{total.tokens_per_step:.2f}" if total.tokens_per_step else NONE,
                ratio_between(total.speed_ratio),
                *(ratio_between(total.baseline_ratios.get(label)) for label in others),
            )
            for method, total in overall.items()
        ),
    )


def _cell(methods: Mapping[str, Speed], method: str) -> str:
    return ratio(methods[method].speed_ratio) if method in methods else NONE
