"""Several runs of a bench as one leaderboard: methods are ranked where model, machine, prompts and settings are equal.

Knows findings; runs no model.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lade.applications.bench.methods import PLAIN
from lade.applications.bench.report.conditions import Condition
from lade.applications.bench.report.exports import as_csv, lines_of
from lade.applications.bench.report.findings import Findings, find
from lade.applications.bench.report.heading import (
    decoding_of,
    device_of,
    machine_of,
    model_of,
    prompts_of,
    versions_of,
    weights_of,
)
from lade.applications.bench.report.layout import mean_accepted
from lade.applications.bench.report.results import read_results
from lade.applications.bench.report.rows import Speed
from lade.applications.bench.report.texttable import NO_INTERVAL, NONE, TextTable, ratio, ratio_between, spread

TITLE = "Leaderboard"
NOTE = (
    "By speed over plain decoding in the same process: median over prompts, with its 95% interval. tokens/s: in "
    "brackets the 10th to 90th percentile of the runs. Mean accepted tokens: new tokens / forwards after the prefill. "
    f"Same text: runs with plain decoding's text. {NO_INTERVAL}."
)
SETTINGS = ("max_new_tokens", "top_k", "top_p", "eos", "chat", "turns", "attn_implementation")  # equal in one table


@dataclass(frozen=True)
class Entry:
    """One method of one run under one condition."""

    run: str
    method: str
    speed: Speed
    parts: Mapping[str, Speed]  # by task, or category of a single task
    same_text: str

    @property
    def rank(self) -> tuple[bool, float]:
        """Methods with another baseline than plain decoding come last."""
        found = self.speed.speed_ratio
        return self.speed.compared_with != PLAIN, -found.median if found is not None else 0.0


@dataclass(frozen=True)
class Board:
    """The entries that can be compared, the fastest first."""

    title: str
    heading: list[tuple[str, str]]
    entries: list[Entry]

    @property
    def table(self) -> TextTable:
        columns = list(dict.fromkeys(column for entry in self.entries for column in entry.parts))
        return TextTable(
            self.title,
            NOTE,
            ("#", "Method", "Run", "× plain", "tokens/s", "Mean accepted tokens", *columns, "Same text"),
            tuple(cells(place, entry, columns) for place, entry in enumerate(self.entries, 1)),
            labels=3,
        )


def cells(place: int, entry: Entry, columns: Sequence[str]) -> tuple[str, ...]:
    speed = entry.speed
    return (
        str(place) if speed.compared_with == PLAIN else NONE,
        speed.named,
        entry.run,
        ratio_between(speed.speed_ratio),
        spread(speed.tokens_per_second, speed.tokens_per_second_range),
        mean_accepted(speed),
        *(ratio(entry.parts[column].speed_ratio) if column in entry.parts else NONE for column in columns),
        entry.same_text,
    )


@dataclass(frozen=True)
class Leaderboard:
    """The boards of several runs, in the order of the runs; `csv`: their lines together."""

    title: str
    boards: list[Board]
    csv: str


def leaderboard(folders: Sequence[Path]) -> Leaderboard:
    """ValueError names an invalid file, or a folder that is given twice."""
    names = _names(folders)
    runs = {name: find(read_results(folder)) for name, folder in zip(names, folders, strict=True)}
    groups: dict[tuple[object, ...], list[tuple[str, Findings, Condition]]] = {}
    for name, findings in runs.items():
        for condition in findings.records:
            groups.setdefault(_key(findings, condition), []).append((name, findings, condition))
    lines = [{"run": name} | line for name, findings in runs.items() for line in lines_of(findings)]
    return Leaderboard(TITLE, [_board(members) for members in groups.values()], as_csv(lines))


def _names(folders: Sequence[Path]) -> list[str]:
    """The folders' names, with the whole path where two have the same name."""
    whole = [folder.resolve() for folder in folders]
    twice = next((folder for folder in whole if whole.count(folder) > 1), None)
    if twice is not None:
        raise ValueError(f"FOLDERS must be different, got {twice} twice")
    short = [folder.name for folder in whole]
    return [name if short.count(name) == 1 else str(folder) for name, folder in zip(short, folders, strict=True)]


def _key(findings: Findings, condition: Condition) -> tuple[object, ...]:
    """What must be equal for a fair comparison."""
    run, records = findings.run, findings.records[condition]
    options = run.get("options", {})
    prompts = frozenset((record.task, record.prompt_id) for record in records)
    digests = frozenset((task, counts.get("digest")) for task, counts in run.get("tasks", {}).items())
    settings = tuple(str(options.get(name)) for name in SETTINGS)
    device = device_of(run)
    return model_of(run), weights_of(run), device, machine_of(run), prompts, digests, settings, condition


def _board(members: Sequence[tuple[str, Findings, Condition]]) -> Board:
    _, first, condition = members[0]
    entries = [entry for name, findings, each in members for entry in _entries(name, findings, each)]
    run = first.run
    versions = dict.fromkeys(
        ", ".join(f"{name} {version}" for name, version in versions_of(findings.run)) for _, findings, _ in members
    )
    heading = [
        ("Model", model_of(run)),
        ("Weights", weights_of(run)),
        ("Device", device_of(run)),
        ("Machine", machine_of(run)),
        ("Versions", "; ".join(filter(None, versions))),
        ("Prompts", prompts_of(first.records[condition])),
        ("Decoding", decoding_of(run.get("options", {}) | {"temperature": [condition.temperature]})),
    ]
    title = f"{model_of(run)} · {condition}"
    return Board(title, [(name, text) for name, text in heading if text], sorted(entries, key=lambda e: e.rank))


def _entries(name: str, findings: Findings, condition: Condition) -> Iterator[Entry]:
    parts = findings.parts(condition)
    for method, speed in findings.overall[condition].items():
        rows = [row for row in findings.of(condition) if row.method == method]
        same = f"{sum(row.identical for row in rows)}/{sum(row.runs for row in rows)}"
        yield Entry(
            name, method, speed, {part: found[method] for part, found in parts.items() if method in found}, same
        )
