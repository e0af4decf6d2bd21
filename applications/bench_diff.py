"""`lade bench-diff`: paired differences between two runs of a bench, with confidence intervals. Runs no model.

Knows the terminal; the comparison is in `lade.applications.bench.report.difference`.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table

from lade.applications.bench.records import RESULTS
from lade.applications.bench.report.difference import Difference, differences, only_in, trials_of
from lade.applications.bench.report.document import facts
from lade.applications.bench.report.results import some_records
from lade.applications.bench.report.texttable import NO_INTERVAL, NONE, interval, versus
from lade.applications.bench.runfile import RUN, read_run
from lade.applications.exits import Command, usage
from lade.applications.interval import Estimate
from lade.applications.output import JSON, show

SLOWER = 3  # the exit status of --fail-if-slower
IGNORED = ("date", "machine.date", "harness.", "fingerprint", "tasks.")  # always differ, or are reported elsewhere
CAPTION = (
    "B / A: medians of the prompts' ratios and their 95% intervals; S: new tokens / forwards after the prefill; "
    f"texts: changed of all; scores: gained, lost; {NO_INTERVAL}"
)


@click.command("bench-diff", cls=Command)
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--fail-if-slower", is_flag=True, help=f"Exit with status {SLOWER} if a method is surely slower in B.")
@JSON
def command(a: Path, b: Path, fail_if_slower: bool, as_json: bool) -> None:
    """Compare the results A and B of two runs of a bench, prompt by prompt. Each is a results.jsonl or its folder."""
    paths = [path / RESULTS if path.is_dir() else path for path in (a, b)]
    with usage("A B"):
        one, other = (trials_of(some_records(path)) for path in paths)
        notes = differing(*(path.with_name(RUN) for path in paths))
    found = differences(one, other)
    absent = {"only in A": only_in(one, other), "only in B": only_in(other, one)}
    only = [f"{name}: {what}" for name, missing in absent.items() for what in missing]
    lines = [*notes, *only, *single_verdicts(found), verdict(found)]
    show(
        table_of(found),
        *lines,
        found={
            "a": str(paths[0]),
            "b": str(paths[1]),
            "notes": notes,
            "only_in_a": absent["only in A"],
            "only_in_b": absent["only in B"],
            "table": [asdict(change) | {"verdict": change.verdict} for change in found],
        },
        as_json=as_json,
    )
    if fail_if_slower and any(change.slower for change in last_word(found)):
        raise SystemExit(SLOWER)


def differing(one: Path, other: Path) -> list[str]:
    """Different settings of the two runs, if both have a run.json."""
    if not (one.is_file() and other.is_file()):
        return []
    a, b = (dict(facts(read_run(path))) for path in (one, other))
    return [
        f"{name} is {a.get(name, 'not set')} in A, {b.get(name, 'not set')} in B"
        for name in dict.fromkeys([*a, *b])
        if a.get(name) != b.get(name) and not name.startswith(IGNORED)
    ]


def last_word(found: Sequence[Difference]) -> list[Difference]:
    """All tasks together if there are several: among many rows one can look significant by chance."""
    return [change for change in found if change.task is None] or list(found)


def single_verdicts(found: Sequence[Difference]) -> list[str]:
    """A line for every task with a sure difference, where `verdict` tells those of all tasks together."""
    told = last_word(found)
    return [
        f"{change.task} · {change.method}: {change.verdict}"
        for change in found
        if change not in told and change.verdict != "no difference" and not change.verdict.startswith("unsure")
    ]


def verdict(found: Sequence[Difference]) -> str:
    """One line for all rows."""
    if not found:
        return "nothing to compare: no method, task, prompt and condition is in both"
    told = [f"{change.method}: {change.verdict}" for change in last_word(found) if change.verdict != "no difference"]
    texts = sum(change.texts_changed for change in last_word(found))
    scores = sum(change.scores_gained + change.scores_lost for change in last_word(found))
    return f"{'; '.join(told) or 'no difference'}; {texts} texts and {scores} scores changed"


def table_of(found: Sequence[Difference]) -> Table:
    """For 80 columns. Temperature, batch and context are columns if the rows differ in them."""
    varied = [name for name in ("temperature", "batch", "context") if len({getattr(c, name) for c in found}) > 1]
    table = Table(title="B over A", caption=CAPTION, padding=0)
    for name in ("task", *varied, "method"):
        table.add_column(name, overflow="fold", min_width=4)
    for name in ("S", "tokens/s", versus(change.compared_with for change in found), "texts", "scores"):
        table.add_column(name, justify="right", no_wrap=True)
    for change in found:
        table.add_row(*cells(change, varied))
    return table


def cells(change: Difference, varied: Sequence[str]) -> list[str]:
    return [
        change.task or "all",
        *(str(getattr(change, name)) for name in varied),
        change.method,
        *map(short, (change.tokens_per_step, change.tokens_per_second, change.speed_ratio)),
        f"{change.texts_changed}/{change.turns}",
        f"+{change.scores_gained} -{change.scores_lost}",
    ]


def short(estimate: Estimate | None) -> str:
    """A ratio with two decimals."""
    return NONE if estimate is None else f"{estimate.median:.2f} ({interval(estimate, 2)})"
