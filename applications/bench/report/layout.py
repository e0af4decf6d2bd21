"""The main tables: results of every method, then speed-ups in Spec-Bench's layout (arXiv 2401.07851).

Knows records and rows, no method by name.
"""

from collections.abc import Callable, Mapping, Sequence

from lade.applications.bench.methods import PLAIN
from lade.applications.bench.records import Record
from lade.applications.bench.report.conditions import Condition
from lade.applications.bench.report.findings import Findings
from lade.applications.bench.report.rows import Row, Speed, by, speeds
from lade.applications.bench.report.same_text import any_right
from lade.applications.bench.report.texttable import (
    NO_INTERVAL,
    NONE,
    TextTable,
    ratio,
    ratio_between,
    share,
    spread,
    versus,
)

RESULTS = (
    "All tasks together. Speed over plain decoding in the same process: median over prompts with its 95% interval by "
    "bootstrap over prompts. tokens/s: all new tokens / all seconds, in brackets the 10th to 90th percentile of the "
    "runs. Mean accepted tokens: new tokens / forwards after the prefill. Same text: runs with plain decoding's text. "
    f"{NO_INTERVAL}."
)
SPEEDS = (
    "Speed-ups over plain decoding (×, medians over prompts); a method that decodes another distribution is compared "
    "with the method in brackets. Overall: all prompts together, with the 95% interval."
)


def results_table(condition: Condition, findings: Findings) -> TextTable:
    """One row for each method, over all tasks."""
    overall, rows = findings.overall[condition], findings.of(condition)
    others = list(dict.fromkeys(label for speed in overall.values() for label in speed.baseline_ratios))
    right = any_right(rows)
    return TextTable(
        "Results",
        RESULTS,
        (
            "Method",
            versus(speed.compared_with for speed in overall.values()),
            *(f"× {label}" for label in others),
            "tokens/s",
            "Mean accepted tokens",
            "Same text",
            *(["Right answers"] if right else []),
        ),
        tuple(
            (
                speed.named,
                ratio_between(speed.speed_ratio),
                *(ratio_between(speed.baseline_ratios.get(label)) for label in others),
                spread(speed.tokens_per_second, speed.tokens_per_second_range),
                mean_accepted(speed),
                *_texts([row for row in rows if row.method == method], right),
            )
            for method, speed in overall.items()
        ),
    )


def mean_accepted(speed: Speed) -> str:
    return f"{speed.tokens_per_step:.2f}" if speed.tokens_per_step else NONE


def _texts(own: Sequence[Row], right: set[str]) -> list[str]:
    """Same texts, and right answers if any method has one."""
    same = f"{sum(row.identical for row in own)}/{sum(row.runs for row in own)}"
    scored = [row for row in own if row.task in right]
    correct, answers = sum(row.correct for row in scored), sum(row.scored for row in scored)
    return [same, *([f"{correct}/{answers} ({share(correct, answers)})"] if right else [])]


def headline(condition: Condition, findings: Findings) -> str:
    """One sentence: the fastest method and its gain over plain decoding."""
    speeds = {
        method: speed
        for method, speed in findings.overall[condition].items()
        if speed.compared_with == PLAIN != method and speed.speed_ratio is not None
    }
    if not speeds:
        return ""
    best = max(speeds.values(), key=lambda speed: speed.speed_ratio.median if speed.speed_ratio else 0)
    prompts = {(record.task, record.prompt_id) for record in findings.records[condition]}
    return (
        f"Fastest: {best.method}, {ratio_between(best.speed_ratio)} the speed of plain decoding, "
        f"{mean_accepted(best)} mean accepted tokens, {len(prompts)} prompts."
    )


def speed_tables(condition: Condition, findings: Findings) -> list[TextTable]:
    """A table with tasks as columns, and one with categories for every task that has several.

    A single task with categories needs the second table only.
    """
    records = findings.records[condition]
    tasks = by(records, lambda record: record.task)
    parted = {task: own for task, own in tasks.items() if len({record.category for record in own}) > 1}
    found = [
        speed_table(f"Speed by category of {task}", own, lambda record: record.category or NONE, speeds(own))
        for task, own in parted.items()
    ]
    if len(tasks) == len(parted) == 1:
        return found
    return [speed_table("Speed by task", records, lambda record: record.task, findings.overall[condition]), *found]


def speed_table(
    title: str, records: Sequence[Record], column: Callable[[Record], str], overall: Mapping[str, Speed]
) -> TextTable:
    columns = {name: speeds(members) for name, members in by(records, column).items()}
    others = list(dict.fromkeys(label for speed in overall.values() for label in speed.baseline_ratios))
    return TextTable(
        title,
        SPEEDS,
        ("Method", *columns, "#Mean accepted tokens", "Overall", *(f"Overall over {label}" for label in others)),
        tuple(
            (
                total.named,
                *(_cell(methods, method) for methods in columns.values()),
                mean_accepted(total),
                ratio_between(total.speed_ratio),
                *(ratio_between(total.baseline_ratios.get(label)) for label in others),
            )
            for method, total in overall.items()
        ),
    )


def _cell(methods: Mapping[str, Speed], method: str) -> str:
    return ratio(methods[method].speed_ratio) if method in methods else NONE
