"""What the commands share: options that check a model's name, dtype and device as they are read, and loading.

Knows `lade.models.load` and `config_lade`; knows no command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

import lade
from lade.config.settings import MODES
from lade.models.load import DTYPES, as_device, load, model_source
from lade.models.quant import QUANTS

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DTYPE = click.Choice(DTYPES)
MODE = click.Choice(MODES)
QUANT = click.Choice(("", *QUANTS))  # empty: as the checkpoint is


def checked(check: Callable[[str], object]) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """A callback for an option: what `check` raises about the value becomes the option's error."""

    def callback(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        try:
            if value is not None:
                check(value)
        except (OSError, ValueError) as error:
            raise click.BadParameter(str(error), ctx, param) from error
        return value

    return callback


MODEL = checked(model_source)
DEVICE = checked(as_device)


def default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def load_model(
    name: str | None, *, dtype: str | None, device: str, cache_dir: str | None = None, quant: str | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """`lade.models.load` for a command: what fails is told in one line, without a traceback."""
    try:
        return load(name, dtype=dtype, device=device, cache_dir=cache_dir, quant=quant)
    except (OSError, ValueError, ImportError) as error:
        raise click.ClickException(f"{name or 'the model that ships'} does not load: {error}") from error


def configure_lade(**settings: int | str | None) -> None:
    """`lade.config_lade` for a command: what it refuses is an error of the command line."""
    try:
        lade.config_lade(**settings)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
