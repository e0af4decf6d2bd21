"""`lade tune`: reads the options, and refuses what cannot run before any model is loaded.

Knows the terminal; knows neither how settings are searched nor what is shown of them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lade.applications.aliases import renamed
from lade.applications.bench.machine import available_cores
from lade.applications.bench.methods import MethodOptions
from lade.applications.bench.prompts import read_prompts
from lade.applications.bench.task import RunOptions, make_task
from lade.applications.candidates import DEFAULT, settings_of
from lade.applications.exits import Command, failing, interruptible, usage
from lade.applications.interval import ENOUGH
from lade.applications.options import DEVICE, DTYPE, MODEL, default_device, load_model
from lade.applications.output import JSON
from lade.applications.search.measurements import MeasurementFile
from lade.applications.surface import SUFFIXES, check_picture
from lade.config import preset

if TYPE_CHECKING:
    from lade.applications.tuning import Tuning


@click.command("tune", cls=Command)
@click.argument("model", callback=MODEL)
@click.option("--prompts", required=True, type=click.Path(path_type=Path), help="JSON lines with `prompt`.")
@renamed(
    "--candidates",
    "--draft-free",
    name="specs",
    default=DEFAULT,
    help="With commas between them: lookahead:level=5:window=15:guesses=15,auto:budget=16.  [default: a grid]",
)
@click.option("--max-new-tokens", default=64, show_default=True, type=click.IntRange(min=2))
@click.option("--n", "limit", type=click.IntRange(min=1), help="Only so many prompts.")
@click.option("--repeats", default=2, show_default=True, type=click.IntRange(min=1), help="Pairs of runs per prompt.")
@click.option("--pool-from-prompt", is_flag=True, help="Lookahead candidates pool the n-grams of the prompt too.")
@click.option("--warm", is_flag=True, help="Auto candidates draft from the warm table, made where it is missing.")
@click.option("--seed", default=0, show_default=True, type=int)
@click.option("--out", type=click.Path(path_type=Path), help="The preset.  [default: under MODEL's name in the cache]")
@click.option("--overwrite", is_flag=True, help="Replace the preset and the measurements beside it.")
@click.option("--picture", type=click.Path(path_type=Path), help=f"Draw the speeds: {', '.join(SUFFIXES)}.")
@click.option("--dtype", type=DTYPE, help="Default: the model's own.")
@click.option("--device", callback=DEVICE, default=default_device, help="[default: cuda where there is one, else cpu]")
@click.option("--threads", default=available_cores(), type=click.IntRange(min=1), help="Default: all cores.")
@JSON
def command(
    model: str,
    prompts: Path,
    specs: str,
    limit: int | None,
    out: Path | None,
    overwrite: bool,
    picture: Path | None,
    dtype: str | None,
    device: str,
    threads: int,
    pool_from_prompt: bool,
    warm: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Find the fastest fixed settings for MODEL on your prompts, and write them as a preset.

    N, W and G of the paper's mode and the budget of mode auto are measured in pairs with plain decoding; a candidate's
    name is its mode. After Ctrl-C the same command goes on where it stopped. `lade.config_lade(PRESET=...)` takes the
    fastest mode's settings, with MODE="lookahead" or "auto" beside it those of that mode.
    """
    import torch

    from lade.applications.standings import finish
    from lade.applications.tuning import Tuning, head_of, tune

    options = MethodOptions(pool_from_prompt=pool_from_prompt, warm=warm, adapt=False)
    with usage("--candidates"):
        plain, settings = settings_of(specs, options)
    with usage("--prompts"):
        texts = read_prompts(prompts, limit)
    with usage():
        out = out or preset.preset_file(Path(model).resolve().name)
        tuning = Tuning(model, prompts, out, settings, plain, options, RunOptions(turns=1, chat=False, **given))
        check_number(prompts, len(texts))
        if picture is not None:
            with failing(ImportError):
                check_picture(picture)
        prepare(tuning, overwrite)
    torch.set_num_threads(threads)
    loaded, tokenizer = load_model(model, dtype=dtype, device=device)
    with usage():
        task = make_task(prompts.stem, texts, loaded, tokenizer, tuning.run)
        check_number(prompts, len(task.prompts))
        known = MeasurementFile(tuning.measurements, head_of(tuning, texts, loaded))
    if known:
        click.echo(f"{tuning.measurements}: goes on behind {len(known)} measurements", err=True)
    with interruptible(lambda: f"{tuning.measurements} holds {len(known)} measurements; the same command goes on"):
        result = tune(tuning, loaded, task, known)
        finish(tuning, result, loaded, task, picture, as_json)


def check_number(prompts: Path, number: int) -> None:
    """ValueError where so few prompts were chosen, or fit the model, that no interval tells what is surely faster."""
    if number < ENOUGH:
        raise ValueError(f"--prompts {prompts}: must give at least {ENOUGH} prompts that fit the model, got {number}")


def prepare(tuning: Tuning, overwrite: bool) -> None:
    """Make the folder; ValueError where the preset cannot be written, or would replace one without measurements."""
    if tuning.out.suffix != preset.SUFFIX:
        raise ValueError(f"--out {tuning.out}: allowed are files that end in {preset.SUFFIX}")
    try:
        tuning.out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {tuning.out}: its folder cannot be made ({error.strerror})") from error
    if tuning.out.is_dir() or not os.access(tuning.out.parent, os.W_OK):
        raise ValueError(f"--out {tuning.out}: cannot be written to")
    if overwrite:
        tuning.measurements.unlink(missing_ok=True)
    elif tuning.out.exists() and not tuning.measurements.exists():
        raise ValueError(f"--out {tuning.out}: is there already; give another file or --overwrite")
