"""`lade tune`: reads the options and rejects what cannot run before a model is loaded.

Knows the terminal; knows neither the search nor how its results are shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lade.applications.aliases import renamed
from lade.applications.bench.companion import Companion
from lade.applications.bench.methods import MethodOptions
from lade.applications.bench.prompts import Prompt, read_prompts
from lade.applications.bench.task import RunOptions, make_task
from lade.applications.candidates import DEFAULT, settings_of
from lade.applications.exits import Command, failing, interruptible, usage
from lade.applications.interval import ENOUGH
from lade.applications.options import (
    MODEL,
    draft_quant_option,
    limit_option,
    load_model,
    model_options,
    prompts_option,
    seed_option,
)
from lade.applications.output import JSON
from lade.applications.outputs import check_suffix, make_room, taken
from lade.applications.search.measurements import MeasurementFile
from lade.applications.surface import SUFFIXES, check_picture
from lade.config import preset

if TYPE_CHECKING:
    from lade.applications.tuning import Tuning


@click.command("tune", cls=Command)
@click.argument("model", callback=MODEL)
@prompts_option
@renamed(
    "--candidates",
    "--draft-free",
    name="specs",
    help="Separated by commas: lookahead:level=5:window=15:guesses=15,auto:budget=16.  [default: a grid]",
)
@click.option("--draft", callback=MODEL, help="A draft model: search its candidates per node instead.")
@draft_quant_option
@click.option(
    "--nodes", default=32, show_default=True, type=click.IntRange(1, 64), help="With --draft: nodes of a tree, at most."
)
@click.option("--no-speed", is_flag=True, help="With --draft: count acceptance and steps only; time nothing.")
@click.option("--max-new-tokens", default=64, show_default=True, type=click.IntRange(min=2))
@limit_option()
@click.option("--repeats", default=2, show_default=True, type=click.IntRange(min=1), help="Pairs of runs per prompt.")
@click.option("--pool-from-prompt", is_flag=True, help="Lookahead candidates pool the prompt's n-grams too.")
@click.option("--warm", is_flag=True, help="Auto candidates draft from the warm table; it is computed if missing.")
@seed_option
@click.option("--out", type=click.Path(path_type=Path), help="The preset.  [default: MODEL's name in the cache folder]")
@click.option("--overwrite", is_flag=True, help="Replace the preset and its measurements.")
@click.option("--picture", type=click.Path(path_type=Path), help=f"Plot of the speeds: {', '.join(SUFFIXES)}.")
@model_options
@JSON
def command(
    model: str,
    prompts: Path,
    specs: str | None,
    draft: str | None,
    draft_quant: str | None,
    nodes: int,
    no_speed: bool,
    limit: int | None,
    out: Path | None,
    overwrite: bool,
    picture: Path | None,
    pool_from_prompt: bool,
    warm: bool,
    dtype: str | None,
    device: str,
    quant: str | None,
    threads: int,
    as_json: bool,
    **given: Any,
) -> None:
    """Find the fastest fixed settings for MODEL on your prompts, and write them as a preset.

    Each candidate runs in pairs with plain decoding: N, W and G of mode lookahead, the budget of mode auto. After
    Ctrl-C, run the same command again to continue. `lade.config_lade(PRESET=...)` takes the settings of the fastest
    mode; add MODE="lookahead" or "auto" for those of one mode.

    With --draft: the acceptance of the draft model's k likeliest tokens, and the best widths of `lade.MultiCandidate`
    with at most --nodes nodes, greedily; then the best of each depth in pairs with plain decoding.
    """
    import torch

    from lade.applications.tuning import Tuning

    check_draft(draft, draft_quant, no_speed, (specs, pool_from_prompt or None, warm or None, picture))
    options = MethodOptions(
        pool_from_prompt=pool_from_prompt, warm=warm, adapt=False, draft=draft, draft_quant=draft_quant
    )
    with usage("--candidates"):
        plain, settings = settings_of(specs or DEFAULT, options)
    with usage("--prompts"):
        texts = read_prompts(prompts, limit)
    with usage():
        out = out or preset.preset_file("-".join(Path(name).resolve().name for name in (model, draft) if name))
        run = RunOptions(turns=1, chat=False, **given)
        tuning = Tuning(model, prompts, out, settings if draft is None else [], plain, options, run)
        check_number(prompts, len(texts))
        with failing(ImportError):
            check_picture(picture)
        prepare(tuning, overwrite)
    torch.set_num_threads(threads)
    loading = {"dtype": dtype, "device": device, "quant": quant or None}
    if draft is None:
        tune_settings(tuning, texts, loading, picture, as_json)
    else:
        tune_widths(tuning, texts, loading, nodes, not no_speed, as_json)


def check_draft(draft: str | None, draft_quant: str | None, no_speed: bool, others: tuple[object, ...]) -> None:
    """An error of usage for options that need --draft, or that cannot be given with it."""
    if draft is None and (no_speed or draft_quant is not None):
        raise click.UsageError(f"{'--no-speed' if no_speed else '--draft-quant'} must be given with --draft")
    names = ("--candidates", "--pool-from-prompt", "--warm", "--picture")
    given = next((name for name, value in zip(names, others, strict=True) if value is not None), None)
    if draft is not None and given is not None:
        raise click.UsageError(f"{given} and --draft must not be given together")


def tune_settings(
    tuning: Tuning, texts: list[Prompt], loading: dict[str, Any], picture: Path | None, as_json: bool
) -> None:
    from lade.applications.standings import finish
    from lade.applications.tuning import head_of, tune

    loaded, tokenizer = load_model(tuning.model, **loading)
    with usage():
        task = make_task(tuning.prompts.stem, texts, loaded, tokenizer, tuning.run)
        check_number(tuning.prompts, len(task.prompts))
        known = MeasurementFile(tuning.measurements, head_of(tuning, texts, loaded))
    with continuing(tuning, known):
        result = tune(tuning, loaded, task, known)
        finish(tuning, result, loaded, task, picture, as_json)


def tune_widths(
    tuning: Tuning, texts: list[Prompt], loading: dict[str, Any], nodes: int, speed: bool, as_json: bool
) -> None:
    from lade.applications.tune_widths import check_pair, find, finish, narrower, timed
    from lade.applications.tuning import head_of
    from lade.facts.fingerprint import fingerprint

    loaded, tokenizer = load_model(tuning.model, **loading)
    writer, own = load_model(tuning.options.draft, **loading | {"quant": tuning.options.draft_quant})
    companion = Companion(writer, own, tokenizer)
    with usage():
        check_pair(loaded, companion)
        task = make_task(tuning.prompts.stem, texts, narrower(loaded, writer), tokenizer, tuning.run)
        check_number(tuning.prompts, len(task.prompts))
        head = head_of(tuning, texts, loaded) | {"draft": fingerprint(writer), "nodes": nodes}
        known = MeasurementFile(tuning.measurements, head)
    with continuing(tuning, known):
        found = find(tuning, loaded, companion, task, nodes)
        result = timed(tuning, loaded, companion, task, known, found) if speed else None
        finish(tuning, found, result, (loaded, companion), task, as_json)


@contextmanager
def continuing(tuning: Tuning, known: MeasurementFile) -> Iterator[None]:
    """Say what an earlier run measured, and what an interrupt leaves."""
    if known:
        click.echo(f"{tuning.measurements}: continues after {len(known)} measurements", err=True)
    with interruptible(lambda: f"{tuning.measurements} holds {len(known)} measurements; the same command continues"):
        yield


def check_number(prompts: Path, number: int) -> None:
    """ValueError for too few prompts for a confidence interval."""
    if number < ENOUGH:
        raise ValueError(f"--prompts must give at least {ENOUGH} prompts that fit the model, got {number} of {prompts}")


def prepare(tuning: Tuning, overwrite: bool) -> None:
    """Make the folder. ValueError where the preset cannot be written, or would replace one without measurements."""
    check_suffix("--out", tuning.out, [preset.SUFFIX])
    make_room("--out", tuning.out)
    if overwrite:
        tuning.measurements.unlink(missing_ok=True)
    elif tuning.out.exists() and not tuning.measurements.exists():
        raise taken("--out", tuning.out)
