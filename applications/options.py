"""Options that several commands share: a model's name, dtype and device are checked as they are read; and loading.

Knows `lade.models.load` and `config_lade`; knows no command.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import lade
from lade.applications.aliases import renamed
from lade.applications.bench.machine import default_threads
from lade.base.coldest import ALLOWED, is_temperature
from lade.config.settings import MODES
from lade.models.device import as_device
from lade.models.load import DTYPES, load, model_source
from lade.models.quant import QUANTS

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def checked(check: Callable[[str], object]) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """A callback for an option: an error of `check` about the value becomes the option's error."""

    def callback(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        try:
            if value is not None:
                check(value)
        except (OSError, ValueError) as error:
            raise click.BadParameter(str(error), ctx, param) from error
        return value

    return callback


def together(*options: Callable[..., Any]) -> Callable[..., Any]:
    """One decorator for several options, shown in this order."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


class FiniteRange(click.FloatRange):
    """Numbers within bounds; click's own range lets NaN and, without bounds, infinity pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"must be a finite number, got {value}", param, ctx)
        return found


class Temperature(FiniteRange):
    """0, for greedy decoding, or a temperature to sample at."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not is_temperature(found):
            self.fail(f"must be {ALLOWED}, got {value}", param, ctx)
        return found


MODEL = checked(model_source)
SEED = click.IntRange(0, 2**63 - 1)
THREADS = click.IntRange(1, 1024)
DTYPE = click.Choice(DTYPES)
QUANT = click.Choice(("", *QUANTS))  # empty: as in the checkpoint

dtype_option = click.option(
    "--dtype", type=DTYPE, help="[default: the checkpoint's own; float32 on a CPU where torch is slow in that]"
)
device_option = click.option(
    "--device", callback=checked(as_device), default=default_device, help="[default: cuda if available, else cpu]"
)
threads_option = click.option(
    "--threads", default=default_threads, type=THREADS, help="[default: OMP_NUM_THREADS, else all cores]"
)
quant_option = click.option("--quant", type=QUANT, help="Quantise the weights.  [default: the checkpoint's own]")
pack_option = click.option(
    "--pack/--no-pack",
    default=None,
    help="On a CPU, store weights in oneDNN's layout.  [default: those that decoding multiplies faster so]",
)
machine_options = together(dtype_option, device_option, threads_option)
model_options = together(dtype_option, device_option, quant_option, threads_option)  # of all commands that load a model
draft_quant_option = click.option("--draft-quant", type=click.Choice(list(QUANTS)), help="Quantise the draft model.")
seed_option = click.option("--seed", default=0, show_default=True, type=SEED)
prompts_option = click.option(
    "--prompts", required=True, type=click.Path(path_type=Path), help="JSON lines with `prompt`."
)
temperature_option = click.option(
    "--temperature", default=0.0, show_default=True, type=Temperature(min=0), help="0: greedy."
)
flash_option = renamed(
    "--use-flash",
    "--use_flash",
    is_flag=True,
    help="Flash attention for draft trees: flash-attn's, else PyTorch's own (USE_FLASH).",
)
corpus_option = click.option(
    "--corpus",
    type=click.Path(path_type=Path, exists=True, dir_okay=False, resolve_path=True),  # replicas may work elsewhere
    help="Draft from this corpus too (lade corpus).",
)
window_options = together(
    click.option(
        "--mode", type=click.Choice(MODES), help="auto: sizes are limits; lookahead: exactly these.  [default: auto]"
    ),
    click.option("--level", type=int, help="N, tokens of an n-gram.  [default: 5]"),
    renamed("--window-size", "--window_size", type=int, help="W, columns of the window.  [default: 7]"),
    renamed("--guess-set-size", "--guess_set_size", type=int, help="G, n-grams per key, -1 for all.  [default: W]"),
)


def limit_option(**attributes: Any) -> Callable[..., Any]:
    return click.option("--n", "limit", type=click.IntRange(min=1), help="Use only the first N prompts.", **attributes)


def check_corpus(path: Path | None, model: PreTrainedModel) -> None:
    """An error of the command where a corpus cannot be read, or has tokens that the model has not. `None` passes."""
    error = corpus_error(path, model)
    if error is not None:
        raise click.ClickException(error)


def corpus_error(path: str | Path | None, model: PreTrainedModel) -> str | None:
    """The same as text; `None` where nothing is wrong."""
    from lade.facts.vocabulary import readable
    from lade.memory.corpusfile import load_corpus

    try:
        if path is not None:
            load_corpus(path, readable(model))
    except (OSError, ValueError) as error:
        return str(error)
    return None


def load_model(
    name: str | None,
    *,
    dtype: str | None,
    device: str,
    cache_dir: str | None = None,
    quant: str | None = None,
    pack: bool | None = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """`lade.models.load` for a command: an error is one line without a traceback."""
    try:
        return load(name, dtype=dtype, device=device, cache_dir=cache_dir, quant=quant, pack=pack)
    except (OSError, ValueError, ImportError) as error:
        raise click.ClickException(f"{name or 'the default model'} does not load: {error}") from error


def configure_lade(**settings: int | str | Path | None) -> None:
    """`lade.config_lade` for a command: an invalid setting is an error of the command line."""
    try:
        lade.config_lade(**settings)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
