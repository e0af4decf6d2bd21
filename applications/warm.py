"""`lade warm`: computes a model's warm table ahead of time, and prints its cost and its path.

Knows the terminal; tables and files are `lade.memory.warm`'s.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lade.applications.bench.prompts import Prompt, read_prompts
from lade.applications.exits import Command, failing, interruptible, usage
from lade.applications.options import MODEL, limit_option, load_model, model_options
from lade.files.cachefolder import NotKeptWarning, writable_cache_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from lade.memory.warmtable import WarmTable

KEPT = "the part computed so far is kept; the same command continues"


@click.command("warm", cls=Command)
@click.argument("model", callback=MODEL)
@click.option("--top", default=16, show_default=True, type=click.IntRange(min=1), help="Tokens kept per entry.")
@click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    help="JSON lines with `prompt` (text, turns, question): the model answers them, and the table holds its answers' "
    "contexts too.",
)
@limit_option()
@click.option(
    "--max-new-tokens", default=128, show_default=True, type=click.IntRange(min=1), help="Tokens of an answer, at most."
)
@click.option(
    "--hold-out",
    is_flag=True,
    help="Keep every fifth prompt out; print tokens per step on those, with and without the contexts of the others.",
)
@model_options
@click.option(
    "--pack/--no-pack",
    default=True,
    show_default=True,
    help="On a CPU, store weights in oneDNN's layout, in which it multiplies many tokens fastest.",
)
def command(
    model: str,
    top: int,
    prompts: Path | None,
    limit: int | None,
    max_new_tokens: int,
    hold_out: bool,
    dtype: str | None,
    device: str,
    quant: str | None,
    pack: bool,
    threads: int,
) -> None:
    """Compute MODEL's most likely tokens after every vocabulary entry and in texts it generates; store them.

    With --prompts also in its answers to your prompts, of which only the first turn counts: drafts then suit prompts of
    that kind, and whoever decodes with MODEL on this machine drafts from those answers. Another file's prompts replace
    them; deleting the printed file leaves the model's own table.

    Tables are in the folder LADE_CACHE, else in lade's folder of the user's cache. A table is valid for one dtype and
    quantisation; a changed model needs a new one.
    """
    import torch

    from lade.entry.warming import check_drafts
    from lade.memory.warm import warming as warm

    asked = read(prompts, limit, hold_out)
    prepare()
    torch.set_num_threads(threads)
    loaded, tokenizer = load_model(model, dtype=dtype, device=device, quant=quant or None, pack=pack)
    with usage("--top"):
        warm.check(loaded, top)
    with failing(ValueError):
        check_drafts(loaded)
    with interruptible(lambda: KEPT), kept():
        if prompts is None:
            warm_up(loaded, tokenizer, top)
        else:
            warm_up_with_prompts(loaded, tokenizer, asked, top=top, length=max_new_tokens, hold_out=hold_out)


def read(prompts: Path | None, limit: int | None, hold_out: bool) -> list[Prompt]:
    """The prompts of the file. An error of usage, before any work, where they are of no use."""
    if prompts is None:
        if hold_out or limit is not None:
            raise click.UsageError(f"{'--hold-out' if hold_out else '--n'} must be given with --prompts")
        return []
    with usage("--prompts"):
        return read_prompts(prompts, limit)


def prepare() -> None:
    """An error, before any work, where the table cannot be stored."""
    with failing(OSError):
        writable_cache_folder()


@contextmanager
def kept() -> Iterator[None]:
    """The first file that the cache folder does not take ends the command: a table in memory alone is of no use."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotKeptWarning)
        with failing(NotKeptWarning):
            yield


def warm_up(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, top: int) -> None:
    import lade

    known = cached(model, tokenizer)
    with failing(OSError, ValueError, RuntimeError):
        table = lade.warm_up(model, top=top, tokenizer=tokenizer)
    tell(model, table, known)


def warm_up_with_prompts(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: list[Prompt], hold_out: bool, **options: Any
) -> None:
    """Make the table with contexts of the prompts.

    Args:
        options: `top` and `length` of `lade.memory.warm.growing.grow`.
    """
    from lade.applications.warm_prompts import EVERY, gain, tokenised
    from lade.memory.warm import warming as warm
    from lade.memory.warm.growing import grow

    with usage("--prompts"):
        asked, skipped = tokenised(prompts, model, tokenizer, options["length"])
    held = asked[EVERY - 1 :: EVERY] if hold_out else []
    if hold_out and not held:
        raise click.UsageError(f"--hold-out must be given with {EVERY} prompts that fit the model, got {len(asked)}")
    asked = [prompt for prompt in asked if prompt not in held]
    if not asked:
        raise click.UsageError("--hold-out must be given with prompts that differ, got the same one each time")
    known = cached(model, tokenizer)
    with failing(OSError, ValueError, RuntimeError):
        table = grow(model, asked, tokenizer=tokenizer, **options)
        own = warm.own_table(model, top=options["top"], tokenizer=tokenizer)
    tell(model, table, known)
    more = len(table.contexts.endings) - len(own.contexts.endings)
    left_out = f"; prompts that do not fit the model: {skipped}" if skipped else ""
    click.echo(f"contexts that answers to the prompts added: {more}; prompts: {len(asked)}{left_out}")
    if held:
        click.echo(gain(model, tokenizer, held, own, table, options["length"]))


def cached(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> WarmTable | None:
    """The table in the cache; where there is none, say what takes so long: a bar shows on a terminal alone."""
    from lade.memory.warm import warming as warm

    known = warm.cached(model, tokenizer=tokenizer)
    if known is None:
        click.echo("computing the warm table, which takes minutes", err=True)
    return known


def tell(model: PreTrainedModel, table: WarmTable, known: WarmTable | None) -> None:
    """Print what the table holds and where it lies."""
    from lade.memory.warm.file import grown_file, table_file

    path = grown_file(model) if table.prompts else table_file(model)
    done = "found in the cache, computed" if table is known else "computed"
    entries, kept = table.tokens.shape
    contexts = len(table.contexts.endings)
    click.echo(
        f"{kept} tokens after each of {entries} entries and {contexts} contexts: {done} in {table.seconds:.2f} s"
    )
    click.echo(f"{path} ({path.stat().st_size:,} bytes)")
