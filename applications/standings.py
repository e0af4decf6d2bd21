"""Results of a tuning: the table, the preset file, the plot. Runs no model."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from lade.applications.bench.machine import describe
from lade.applications.bench.report.texttable import NO_INTERVAL, interval
from lade.applications.bench.task import Task
from lade.applications.candidates import PLAIN_SETTINGS
from lade.applications.output import show
from lade.applications.search.autotune import Standing
from lade.applications.surface import draw
from lade.applications.tuning import Result, Tuning
from lade.config import preset
from lade.facts.fingerprint import fingerprint

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CAPTION = f"chosen: the smallest candidate that is not surely slower than the fastest; {NO_INTERVAL}"


def finish(
    tuning: Tuning, result: Result, model: PreTrainedModel, task: Task, picture: Path | None, as_json: bool
) -> None:
    """Write the preset and the plot, and print the table."""
    of_candidate = {setting.candidate: setting for setting in tuning.settings}
    name = f"{tuning.model} · {task.name}, {len(task.prompts)} prompts × {tuning.run.repeats}"
    found = {mode: outcome.best for mode, outcome in result.outcomes.items() if outcome.best is not None}
    origin = {
        "model": tuning.model,
        "fingerprint": fingerprint(model),
        "prompts": str(tuning.prompts),
        "speed": {mode: asdict(best.speed) for mode, best in found.items()},
        "run": asdict(tuning.run),
        "machine": describe(model.device),
    }
    settings = {mode: of_candidate[best.candidate].preset for mode, best in found.items()} or PLAIN_SETTINGS
    fastest = of_candidate[result.best.candidate].mode if result.best is not None else next(iter(PLAIN_SETTINGS))
    written = preset.write(tuning.out, fastest, settings, origin)
    if picture is not None:
        draw([(of_candidate[standing.candidate], standing) for standing in result.standings], name, picture)
    show(table_of(result, name), *_remarks(tuning, result, task, picture), found=written, as_json=as_json)


def _remarks(tuning: Tuning, result: Result, task: Task, picture: Path | None) -> list[str]:
    """Lines below the table; the last one shows how to use the preset."""
    nothing = "nothing is surely faster than plain decoding: the preset uses one token per forward"
    return [
        *([nothing] if result.best is None else []),
        *([f"{task.skipped} prompts do not fit the model"] if task.skipped else []),
        *([f"picture: {picture}"] if picture is not None else []),
        f"lade.config_lade(PRESET={str(tuning.out)!r})",
    ]


def table_of(result: Result, title: str) -> Table:
    table = Table(title=title, caption=CAPTION)
    table.add_column("candidate", overflow="fold")
    for column in ("T at most", "prompts", "× plain (95%)"):
        table.add_column(column, justify="right")
    table.add_column("verdict")
    chosen = {outcome.best.candidate for outcome in result.outcomes.values() if outcome.best is not None}
    for standing in result.standings:
        candidate, speed = standing.candidate, standing.speed
        table.add_row(
            candidate.label,
            "∞" if candidate.size == sys.maxsize else str(candidate.size),
            str(len(standing.ratios)),
            f"{speed.median:.2f} ({interval(speed, 2)})",
            verdict(standing, candidate in chosen, result),
        )
    return table


def verdict(standing: Standing, chosen: bool, result: Result) -> str:
    if chosen:
        overall = result.best is not None and result.best.candidate == standing.candidate
        return "chosen, fastest mode" if overall else "chosen for its mode"
    if not standing.final:
        return "left out"
    if standing.speed.below(1):
        return "surely slower"
    return "surely faster" if standing.faster else "not surely faster"
