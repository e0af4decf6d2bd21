"""Peak memory of every method of a bench, as a table. Loads no model itself."""

from collections.abc import Sequence
from dataclasses import asdict

import torch
from rich.table import Table

from lade.applications.bench.bench import Bench
from lade.applications.bench.machine import describe
from lade.applications.bench.memory import MemoryJob, MemoryResult, check_peak, measure
from lade.applications.bench.report import BenchReport
from lade.applications.bench.report.files import SUMMARY
from lade.applications.bench.session import clear_run
from lade.files.regularfile import MEBIBYTE
from lade.memory.warm.progress import progress_bar


def bench_memory(bench: Bench, context: int | None, overwrite: bool) -> BenchReport:
    """Measure each contender in its own process, and write the summary into the folder.

    ChildProcessError if one fails, ValueError if one given by name cannot run.
    """
    check_peak(torch.device(bench.loading["device"]))
    clear_run(bench.out, overwrite)
    jobs = [
        MemoryJob(
            model=bench.model,
            label=contender.label,
            options=asdict(bench.methods),
            context=context,
            max_new_tokens=bench.run.max_new_tokens,
            threads=torch.get_num_threads(),
            seed=bench.run.seed,
            loading=dict(bench.loading),
        )
        for contender in bench.contenders
    ]
    found: list[MemoryResult] = []
    with progress_bar("memory") as move:
        for contender, job in zip(bench.contenders, jobs, strict=True):
            move(len(found), len(jobs))
            found.append(measure(job, bench.run.repeats))
            if contender.named and found[-1].refusal is not None:
                raise ValueError(f"method {contender.label!r}: {found[-1].refusal}")
    results = [result for result in found if result.refusal is None]
    left_out = dict(bench.left_out) | {result.method: result.refusal for result in found if result.refusal is not None}
    rows = [asdict(result) for result in results]
    size = f"{results[0].context} tokens of context, {bench.run.max_new_tokens} new"
    report = BenchReport(
        head=head_of(bench, results[0].context),
        table=memory_table(results, f"{bench.model} · {size}"),
        notes=[
            *(f"{result.method} decodes plainly: {result.fallback}" for result in results if result.fallback),
            *(f"{method} is left out: {reason}" for method, reason in left_out.items()),
        ],
        rows=rows,
        brief=rows,
        path=bench.out / SUMMARY,
    )
    report.write(report.path)
    return report


def head_of(bench: Bench, context: int) -> dict[str, object]:
    return {
        "model": bench.model,
        "out": str(bench.out),
        "machine": describe(torch.device(bench.loading["device"])),
        "methods": [contender.label for contender in bench.contenders],
        "options": bench.options(),
        "context": context,
    }


def memory_table(results: Sequence[MemoryResult], title: str) -> Table:
    """The first result is plain decoding's."""
    table = Table(title=title, caption="MiB; each method in its own process; seconds: one call, without warm-up")
    table.add_column("method", overflow="fold")
    for column in ("loaded", "peak", "over loaded", "over plain", "seconds"):
        table.add_column(column, justify="right")
    for result in results:
        cells = (result.loaded, result.peak, result.used, result.used - results[0].used)
        table.add_row(result.method, *(f"{cell / MEBIBYTE:.1f}" for cell in cells), f"{result.seconds:.2f}")
    return table
