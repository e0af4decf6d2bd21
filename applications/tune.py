"""`lade tune`: reads the options and rejects what cannot run before a model is loaded.

Knows the terminal; knows neither the search nor how its results are shown.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lade.applications.aliases import renamed
from lade.applications.bench.methods import MethodOptions
from lade.applications.bench.prompts import read_prompts
from lade.applications.bench.task import RunOptions, make_task
from lade.applications.candidates import DEFAULT, settings_of
from lade.applications.exits import Command, failing, interruptible, usage
from lade.applications.interval import ENOUGH
from lade.applications.options import MODEL, limit_option, load_model, machine_options, prompts_option, seed_option
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
    default=DEFAULT,
    help="Separated by commas: lookahead:level=5:window=15:guesses=15,auto:budget=16.  [default: a grid]",
)
@click.option("--max-new-tokens", default=64, show_default=True, type=click.IntRange(min=2))
@limit_option()
@click.option("--repeats", default=2, show_default=True, type=click.IntRange(min=1), help="Pairs of runs per prompt.")
@click.option("--pool-from-prompt", is_flag=True, help="Lookahead candidates pool the prompt's n-grams too.")
@click.option("--warm", is_flag=True, help="Auto candidates draft from the warm table; it is computed if missing.")
@seed_option
@click.option("--out", type=click.Path(path_type=Path), help="The preset.  [default: MODEL's name in the cache folder]")
@click.option("--overwrite", is_flag=True, help="Replace the preset and its measurements.")
@click.option("--picture", type=click.Path(path_type=Path), help=f"Plot of the speeds: {', '.join(SUFFIXES)}.")
@machine_options
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

    Each candidate runs in pairs with plain decoding: N, W and G of mode lookahead, the budget of mode auto. After
    Ctrl-C, run the same command again to continue. `lade.config_lade(PRESET=...)` takes the settings of the fastest
    mode; add MODE="lookahead" or "auto" for those of one mode.
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
        click.echo(f"{tuning.measurements}: continues after {len(known)} measurements", err=True)
    with interruptible(lambda: f"{tuning.measurements} holds {len(known)} measurements; the same command continues"):
        result = tune(tuning, loaded, task, known)
        finish(tuning, result, loaded, task, picture, as_json)


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
