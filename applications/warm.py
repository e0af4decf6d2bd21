"""`lade warm`: computes a model's warm table ahead of time, and prints its cost and its path.

Knows the terminal; tables and files are `lade.memory.warm.warming`'s.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from lade.applications.exits import Command, failing, interruptible, usage
from lade.applications.options import DTYPE, MODEL, QUANT, device_option, load_model
from lade.files.cachefolder import cache_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from lade.memory.warm.warming import WarmTable


@click.command("warm", cls=Command)
@click.argument("model", callback=MODEL)
@click.option("--top", default=16, show_default=True, type=click.IntRange(min=1), help="Tokens kept per entry.")
@click.option("--dtype", type=DTYPE, help="A table is valid for one dtype.  [default: the checkpoint's own]")
@device_option
@click.option("--quant", type=QUANT, help="Quantisation; a table is valid for one.  [default: the checkpoint's own]")
def command(model: str, top: int, dtype: str | None, device: str, quant: str | None) -> None:
    """Compute MODEL's most likely tokens after every vocabulary entry and in texts it generates; store them.

    The table is in the folder LADE_CACHE, else in lade's folder of the user's cache. A changed model needs a new one.
    """
    from lade.memory.warm import warming as warm

    prepare()
    loaded, tokenizer = load_model(model, dtype=dtype, device=device, quant=quant or None)
    known = warm.cached(loaded, tokenizer=tokenizer)
    with usage("--top"):
        warm.check(loaded, top)
    with interruptible(lambda: "the part computed so far is kept; the same command continues"):
        table = warm_up(loaded, tokenizer, top)
    path = warm.table_file(loaded)
    if not path.exists():
        raise click.ClickException(f"{path}: cannot be written")
    done = "found in the cache, computed" if table is known else "computed"
    entries, kept = table.tokens.shape
    contexts = len(table.contexts.endings)
    click.echo(
        f"{kept} tokens after each of {entries} entries and {contexts} contexts: {done} in {table.seconds:.2f} s"
    )
    click.echo(f"{path} ({path.stat().st_size:,} bytes)")


def prepare() -> None:
    """An error, before any work, where the table cannot be stored."""
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(f"the table's folder cannot be made: {error}") from error
    if not os.access(folder, os.W_OK):
        raise click.ClickException(f"{folder}: cannot be written; set LADE_CACHE to another folder")


def warm_up(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, top: int) -> WarmTable:
    from lade.memory.warm import warming as warm

    with failing(OSError, ValueError, RuntimeError):
        return warm.warm_up(model, top=top, tokenizer=tokenizer)
