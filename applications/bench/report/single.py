"""Every prompt of a task with the figures of every method, as a table. Knows records only."""

from collections.abc import Sequence
from statistics import median

from lade.applications.bench.methods import PLAIN
from lade.applications.bench.records import Record
from lade.applications.bench.report.ratios import speed_ratios
from lade.applications.bench.report.rows import by
from lade.applications.bench.report.texttable import NONE, TextTable

NOTE = (
    "tokens/s of plain decoding; of every other method the ratio to its baseline (median over turns and repeats) and "
    "the mean accepted tokens; ≠: a text differs from the baseline's."
)
DIFFERENT = " ≠"


def prompt_tables(records: Sequence[Record]) -> list[TextTable]:
    """A table for each task; the records are of one condition."""
    return [prompt_table(task, own) for task, own in by(records, lambda record: record.task).items()]


def prompt_table(task: str, records: Sequence[Record]) -> TextTable:
    methods = by(records, lambda record: record.method)
    others = [method for method in methods if method != PLAIN]
    ratios = {method: speed_ratios(records, method, methods[method][0].compared_with) for method in others}
    categories = any(record.category for record in records)
    rows = []
    for prompt, own in by(records, lambda record: str(record.prompt_id)).items():
        found = by(own, lambda record: record.method)
        key = (task, own[0].prompt_id)
        rows.append(
            (
                prompt,
                *([own[0].category or NONE] if categories else []),
                str(round(median(record.new_tokens for record in own))),
                speed_of(found.get(PLAIN, [])),
                *(cell(found.get(method, []), ratios[method].get(key, [])) for method in others),
            )
        )
    header = ("Prompt", *(["category"] if categories else []), "new tokens", "plain, tokens/s", *others)
    return TextTable(f"Prompts of {task}", NOTE, header, tuple(rows), labels=2 if categories else 1)


def speed_of(own: Sequence[Record]) -> str:
    return f"{sum(record.new_tokens for record in own) / sum(record.share for record in own):.1f}" if own else NONE


def cell(own: Sequence[Record], ratios: Sequence[float]) -> str:
    """`2.41× · 3.33`."""
    if not own:
        return NONE
    steps = sum(record.steps for record in own)
    ratio = f"{median(ratios):.2f}×" if ratios else NONE
    accepted = f"{sum(record.new_tokens for record in own) / steps:.2f}" if steps else NONE
    return f"{ratio} · {accepted}{'' if all(record.identical_to_plain for record in own) else DIFFERENT}"
