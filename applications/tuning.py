"""One tuning: every candidate in pairs with plain decoding, run by the bench.

Knows neither the command line nor the output; the search is in `lade.applications.search.autotune`.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path

import click
from transformers import PreTrainedModel

from lade.applications.bench.contenders import Contender
from lade.applications.bench.machine import describe
from lade.applications.bench.methods import MethodOptions
from lade.applications.bench.prompts import Prompt
from lade.applications.bench.report.ratios import speed_ratios
from lade.applications.bench.runner import run_task
from lade.applications.bench.task import RunOptions, Task
from lade.applications.candidates import Setting
from lade.applications.search.autotune import (
    Candidate,
    Measurements,
    SearchOutcome,
    Standing,
    choose,
    measurements_of,
    search,
)
from lade.facts.fingerprint import fingerprint
from lade.memory.warm.progress import progress_bar


@dataclass(frozen=True)
class Tuning:
    """The options of a tuning."""

    model: str
    prompts: Path
    out: Path
    settings: Sequence[Setting]
    plain: Contender
    options: MethodOptions
    run: RunOptions

    @property
    def measurements(self) -> Path:
        return self.out.with_suffix(".measurements.jsonl")


@dataclass(frozen=True)
class Result:
    """The outcome of each mode, and the fastest candidate of all."""

    outcomes: dict[str, SearchOutcome]
    best: Standing | None

    @property
    def standings(self) -> list[Standing]:
        return [standing for outcome in self.outcomes.values() for standing in outcome.standings]


def head_of(tuning: Tuning, texts: Sequence[Prompt], model: PreTrainedModel) -> dict[str, object]:
    """Everything that measurements depend on; those with another head are not mixed with this run's."""
    machine = describe(model.device)
    texts_hash = blake2b(json.dumps([asdict(text) for text in texts]).encode(), digest_size=8).hexdigest()
    return {
        "kind": "measurements",
        "format": 1,
        "model": fingerprint(model),
        "dtype": str(model.dtype).removeprefix("torch."),
        "attention": model.config._attn_implementation,
        "prompts": texts_hash,
        "candidates": [setting.contender.label for setting in tuning.settings],
        "pool_from_prompt": tuning.options.pool_from_prompt,
        "warm": tuning.options.warm,
        "fixed": not tuning.options.adapt,
        **asdict(tuning.run),
        **{name: machine[name] for name in ("cpu", "device", "threads", "versions")},
    }


def tune(tuning: Tuning, model: PreTrainedModel, task: Task, known: Measurements) -> Result:
    """Search mode by mode, then compare the best of each."""
    measure = measurer(tuning, model, task)
    groups: dict[str, list[Candidate]] = {}
    for setting in tuning.settings:
        groups.setdefault(setting.mode, []).append(setting.candidate)
    total = sum(measurements_of(len(group), len(task.prompts)) for group in groups.values())
    outcomes: dict[str, SearchOutcome] = {}
    before = 0
    with progress_bar("tuning") as move:
        for mode, group in groups.items():
            shown = shifted(move, before, total)
            outcomes[mode] = search(group, measure, len(task.prompts), known, shown)
            before += measurements_of(len(group), len(task.prompts))
    return Result(outcomes, choose([outcome.best for outcome in outcomes.values() if outcome.best is not None]))


def shifted(move: Callable[[int, int], object], before: int, total: int) -> Callable[[int, int], object]:
    """One progress bar over several searches."""
    return lambda done, _: move(before + done, total)


def measurer(tuning: Tuning, model: PreTrainedModel, task: Task) -> Callable[[Candidate, int], list[float]]:
    contenders = {setting.candidate: setting.contender for setting in tuning.settings}
    warmed = set[Candidate]()

    def measure(candidate: Candidate, prompt: int) -> list[float]:
        pair = [tuning.plain, contenders[candidate]]
        order = pair if prompt % 2 else pair[::-1]  # the order alternates
        run = replace(tuning.run, warmup=0) if candidate in warmed else tuning.run
        records = list(run_task(model, order, replace(task, prompts=(task.prompts[prompt],)), run))
        warmed.add(candidate)
        reason = next((record.fallback for record in records if record.fallback), None)
        if reason is not None:
            raise click.ClickException(f"{candidate.label}: lade falls back to plain decoding: {reason}")
        found = speed_ratios(records, candidate.label, tuning.plain.label)
        return [ratio for ratios in found.values() for ratio in ratios]

    return measure
