"""`lade bench`: reads the options and rejects what cannot run before a model is loaded.

Knows no method and no figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lade.applications.aliases import renamed
from lade.applications.bench.contenders import DEFAULT, Contender, contenders, unready
from lade.applications.bench.methods import METHODS, MethodOptions
from lade.applications.bench.options import grid_options, method_options, run_options
from lade.applications.bench.promptsets import DEFAULT_SUITES, PromptSet, from_file, from_suites, read_ids
from lade.applications.bench.records import RESULTS
from lade.applications.bench.report import BenchReport, build
from lade.applications.bench.scoring.sandbox import SandboxError
from lade.applications.bench.suites import SUITES
from lade.applications.bench.task import RunOptions
from lade.applications.exits import Command, failing, interruptible, usage
from lade.applications.options import model_options
from lade.applications.output import JSON
from lade.applications.outputs import make_folder
from lade.models import load
from lade.models.device import as_device
from lade.models.load import model_source
from lade.models.quant import check_quant

if TYPE_CHECKING:
    from lade.applications.bench.bench import Bench, Ready

ATTENTION = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention")
ERRORS = (ImportError, OSError, ValueError, SandboxError)  # a failed process is an OSError
USUAL = ", ".join(method.name for method in METHODS.values() if method.default)


@click.command("bench", cls=Command)
@click.argument("model")
@click.option("--suite", help=f"Separated by commas: {', '.join(SUITES)}.  [default: {DEFAULT_SUITES}]")
@click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    help="JSON lines with `prompt` (text, turns, question), instead of suites.",
)
@click.option(
    "--methods",
    "specs",
    default=DEFAULT,
    help="Separated by commas; `lookahead:window=15:pool_from_prompt=1` sets options of one method. "
    f"`all`: those of {', '.join(METHODS)} that can run.  [default: {USUAL}]",
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help=f"Folder for {RESULTS} and the report.")
@click.option("--overwrite", is_flag=True, help="Replace the run in OUT; otherwise the same run continues.")
@renamed("--n", "--limit", name="limit", type=click.IntRange(min=1), help="Use only the first N prompts of each suite.")
@click.option(
    "--ids",
    type=click.Path(path_type=Path),
    help="JSON lines with `suite` and `id`: only these prompts of the suites.",
)
@click.option("--offset", default=0, show_default=True, type=click.IntRange(min=0), help="Skip the first prompts.")
@grid_options
@run_options
@method_options
@click.option(
    "--samples",
    default=1,
    show_default=True,
    type=click.IntRange(min=0),
    help="Prompts of each suite whose texts the report shows, decoded once more.",
)
@click.option("--execute", is_flag=True, help="Run generated code in a sandbox to score answers.")
@click.option("--reference-model", help="Model for the log-likelihood of every text.  [default: MODEL]")
@model_options
@click.option(
    "--attn-implementation", type=click.Choice(ATTENTION), metavar="NAME", help=f"One of {', '.join(ATTENTION)}."
)
@click.option("--memory", is_flag=True, help="Measure peak memory instead of speed, each method in its own process.")
@click.option(
    "--workers",
    type=click.IntRange(min=2),
    help="Instead: let 1, 2, 4, ... and this many processes share every call of auto and lookahead.",
)
@JSON
def command(
    model: str,
    suite: str | None,
    prompts: Path | None,
    specs: str,
    out: Path,
    overwrite: bool,
    limit: int | None,
    ids: Path | None,
    offset: int,
    temperature: tuple[float, ...],
    batch: tuple[int, ...],
    context: tuple[int, ...] | None,
    samples: int,
    execute: bool,
    reference_model: str | None,
    threads: int,
    memory: bool,
    workers: int | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Compare decoding METHODS with plain decoding on MODEL, in turn in one process, and record every run.

    Every combination of --temperature, --batch and --context runs. After Ctrl-C, run the same command to continue.
    """
    import torch

    from lade.applications.bench.bench import Bench, Grid
    from lade.applications.bench.memory_report import bench_memory
    from lade.applications.bench.workers_report import bench_workers

    if suite is not None and prompts is not None:
        raise click.UsageError("--suite and --prompts must not be given together")
    if ids is not None and prompts is not None:
        raise click.UsageError("--ids and --prompts must not be given together")
    if memory and len(context or ()) > 1:
        raise click.UsageError("--context must be one number with --memory")
    if memory and workers is not None:
        raise click.UsageError("--memory and --workers must not be given together")
    options = MethodOptions(**_fields(given, MethodOptions))
    run = RunOptions(**_fields(given, RunOptions))
    loading = {name: given[name] or None for name in ("dtype", "device", "attn_implementation", "quant")}
    with usage("--methods"):
        wanted = contenders(specs, options)
    with usage(None, *ERRORS):
        check_models(options, wanted, reference_model, loading)
        sources = [] if memory else _sources(suite, prompts, ids, limit, offset, execute)
    with usage("MODEL"):
        model_source(model)
    with usage(None, *ERRORS):
        make_folder("--out", out)
    torch.set_num_threads(threads)
    grid = Grid(temperature, batch, context or (None,))
    left_out = unready(specs, options)
    bench = Bench(model, wanted, left_out, sources, out, options, run, grid, loading, execute, reference_model, samples)
    with failing(*ERRORS):
        if memory:
            report = bench_memory(bench, (context or (None,))[0], overwrite)
        else:
            report = bench_workers(bench, workers, overwrite) if workers else bench_speed(bench, overwrite)
    report.show(as_json)


def check_models(
    options: MethodOptions, wanted: Sequence[Contender], reference_model: str | None, loading: Mapping[str, Any]
) -> None:
    """Check the names of the other models and the quantisation before any model is loaded.

    Raises:
        ValueError: names the option.
        ImportError: the package that quantises is not installed.
    """
    if options.draft_quant is not None and options.draft is None:
        raise ValueError(f"--draft-quant must be given with --draft, got {options.draft_quant} alone")
    if options.draft is not None and not any(contender.method.takes_draft for contender in wanted):
        using = ", ".join(method.name for method in METHODS.values() if method.takes_draft)
        raise ValueError(f"--draft must be given with a method that uses it ({using}), got {options.draft}")
    for option, name in (("--draft", options.draft), ("--reference-model", reference_model)):
        if name is not None:
            with usage(option):
                model_source(name)
    for quant in (loading["quant"], options.draft_quant):
        if quant is not None:
            check_quant(quant, as_device(loading["device"]))


def _fields(given: dict[str, Any], kind: type) -> dict[str, Any]:
    """The options that are fields of a dataclass."""
    return {field.name: given[field.name] for field in fields(kind) if field.name in given}


def _sources(
    suite: str | None, prompts: Path | None, ids: Path | None, limit: int | None, offset: int, execute: bool
) -> list[PromptSet]:
    if prompts is not None:
        with usage("--prompts"):
            return from_file(prompts, limit, offset)
    with usage("--ids"):
        named = None if ids is None else read_ids(ids)
    return from_suites(suite if suite is not None else DEFAULT_SUITES, limit, offset, execute, named)


def bench_speed(bench: Bench, overwrite: bool) -> BenchReport:
    """Load the model, run the remaining trials, and make the report of the folder."""
    from lade.applications.bench.bench import prepared
    from lade.applications.bench.session import begin, measure, sample

    model, tokenizer = load(bench.model, **bench.loading)
    with usage(None, ValueError):
        ready = prepared(bench, model, tokenizer)
        trials = begin(ready, overwrite)
    for line in remarks(ready, len(trials)):
        click.echo(line, err=True)
    with interruptible(lambda: f"the same command continues after {bench.out / RESULTS}"):
        if trials:
            measure(ready, trials)
        sample(ready, bench.samples)
        return build(bench.out)


def remarks(ready: Ready, left: int) -> list[str]:
    """Lines for the user before the first run."""
    done, tasks = len(ready.trials) - left, {trial.task.name: trial.task for trial in ready.trials}
    here = {contender.label for contender in ready.contenders}
    return [
        *(
            f"method {label!r} is left out{' where it cannot run' if label in here else ''}: {reason}"
            for label, reason in ready.left_out.items()
        ),
        *(f"{name}: {task.skipped} prompts do not fit the model" for name, task in tasks.items() if task.skipped),
        *(
            f"{name}: {task.turns_left_out} later turns do not fit"
            for name, task in tasks.items()
            if task.turns_left_out
        ),
        *(
            f"{source.name}: answers are not scored; --execute allows to run them"
            for source in ready.bench.sources
            if source.unscored
        ),
        *([f"{ready.bench.out}: continues after {done} of {len(ready.trials)} trials"] if done else []),
    ]
