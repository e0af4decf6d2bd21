"""Tokens per step and time of a bench against the number of processes that share a call: a table and a plot."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from lade.applications.bench.bench import Bench, prepared
from lade.applications.bench.conversation import Conversation
from lade.applications.bench.machine import describe
from lade.applications.bench.report import BenchReport
from lade.applications.bench.report.files import SUMMARY
from lade.applications.bench.report.style import legends, looks, png
from lade.applications.bench.run import padded
from lade.applications.bench.session import clear_run
from lade.applications.bench.task import ask, generate_arguments
from lade.applications.bench.trial import pad_of
from lade.applications.bench.workers import MODES, WorkersJob, WorkersResult, measure, numbers
from lade.files.atomic import put_in_place
from lade.memory.warm.progress import progress_bar
from lade.models import load

PICTURE = "workers.png"
ON_A_CPU = "on a CPU the processes share its cores: what more of them gain is fewer nodes per rank, not time"


def bench_workers(bench: Bench, workers: int, overwrite: bool) -> BenchReport:
    """Measure every method with 1, 2, 4, ... and `workers` processes, and write the report into the folder.

    Raises:
        ChildProcessError: a process failed.
        ValueError: no method is one that processes share.
    """
    labels = [one.label for one in bench.contenders if one.method.name in MODES]
    if not labels:
        raise ValueError(f"--methods must hold {' or '.join(MODES)} with --workers, got none of them")
    clear_run(bench.out, overwrite)
    jobs = _jobs(bench, labels, workers)
    results: list[WorkersResult] = []
    with progress_bar("workers") as move:
        for job in jobs:
            move(len(results), len(jobs))
            results.append(measure(job))
    on_cpu = torch.device(bench.loading["device"]).type == "cpu"
    rows = _rows(results)
    report = BenchReport(
        head={
            "model": bench.model,
            "machine": describe(torch.device(bench.loading["device"])),
            "methods": labels,
            "options": bench.options() | {"workers": workers},
        },
        table=_table(rows, bench.model),
        notes=[ON_A_CPU] if on_cpu else [],
        rows=rows,
        brief=rows,
        path=bench.out / SUMMARY,
    )
    report.write(report.path)
    _draw(rows, bench.out / PICTURE, on_cpu, report.notes)
    return report


def _jobs(bench: Bench, labels: Sequence[str], workers: int) -> list[WorkersJob]:
    model, tokenizer = load(bench.model, **bench.loading)
    trials = [trial for trial in prepared(bench, model, tokenizer).trials if trial.repeat == 0]
    pad = pad_of(model, trials[0])
    prompts = []
    for trial in trials:
        rows = [ask(Conversation(trial.task.style), row, 0, trial.options) for row in trial.rows]
        prompts.append(padded(rows, pad, torch.device("cpu")).ids.tolist())
    return [
        WorkersJob(
            bench.model,
            label,
            asdict(bench.methods),
            number,
            prompts,
            pad,
            generate_arguments(model, trials[0].options, pad),
            1 if model.device.type == "cpu" else torch.get_num_threads(),
            bench.run.seed,
            dict(bench.loading),
        )
        for label in labels
        for number in numbers(workers)
    ]


def _rows(results: Sequence[WorkersResult]) -> list[dict[str, Any]]:
    """One per method and number; the texts are compared with those of one process."""
    alone = {result.method: result.texts for result in results if result.workers == 1}
    return [
        {name: value for name, value in asdict(result).items() if name != "texts"}
        | {"tokens_per_step": result.tokens_per_step, "same_text": result.texts == alone[result.method]}
        for result in results
    ]


def _table(rows: Sequence[dict[str, Any]], title: str) -> Table:
    table = Table(title=title, caption="nodes: of a step, on the rank with the most; seconds: of all calls")
    for column in ("method", "processes", "tokens per step", "steps", "nodes per rank", "seconds", "same text"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for row in rows:
        numbers = (f"{row['tokens_per_step']:.2f}", str(row["steps"]), f"{row['nodes_per_rank']:.1f}")
        same = "yes" if row["same_text"] else "no"
        table.add_row(row["method"], str(row["workers"]), *numbers, f"{row['seconds']:.2f}", same)
    return table


def _draw(rows: Sequence[dict[str, Any]], path: Path, on_cpu: bool, notes: list[str]) -> None:
    """Tokens per step, and nodes per rank or seconds, against processes; without matplotlib a note."""
    second = "nodes_per_rank" if on_cpu else "seconds"
    methods = list(dict.fromkeys(row["method"] for row in rows))
    try:
        from matplotlib.figure import Figure
    except ImportError:
        notes.append("the plot needs matplotlib: pip install 'lade-decoding[plot]'")
        return
    look, figure = looks(methods), Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots(2, 1, sharex=True)
    for panel, name in zip(axes, ("tokens_per_step", second), strict=True):
        for method in methods:
            own = [row for row in rows if row["method"] == method]
            style = {"color": look[method].colour, "marker": look[method].mark, "label": method}
            panel.plot([row["workers"] for row in own], [row[name] for row in own], **style)
        panel.set(xlabel="processes", ylabel=name.replace("_", " "))
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.set_ylim(bottom=0)
    put_in_place(path, png(legends(figure)))
