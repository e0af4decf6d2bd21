"""`lade likelihood`: the single-draft report on the terminal and as JSON.

Knows the terminal; what is measured is `lade.applications.likelihood`'s.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from lade.applications.aliases import renamed
from lade.applications.bench.machine import available_cores, describe
from lade.applications.bench.prompts import read_prompts
from lade.applications.exits import Command, usage
from lade.applications.options import DEVICE, DTYPE, MODEL, default_device, load_model
from lade.files.atomic import put_in_place
from lade.memory.warm.progress import progress_bar

if TYPE_CHECKING:
    from lade.applications.likelihood import Standing


@click.command("likelihood", cls=Command)
@click.argument("model", callback=MODEL)
@click.option("--draft", required=True, callback=MODEL, help="A smaller model with MODEL's tokenizer.")
@click.option("--prompts", required=True, type=click.Path(path_type=Path), help="JSON lines with `prompt`.")
@click.option("--max-new-tokens", default=64, show_default=True, type=click.IntRange(min=1))
@renamed(
    "--draft-tokens",
    "--tokens",
    name="tokens",
    default=5,
    show_default=True,
    type=click.IntRange(min=1),
    help="Drafted per step.",
)
@click.option("--n", "limit", type=click.IntRange(min=1), help="Only so many prompts.")
@click.option("--temperature", default=0.0, show_default=True, type=click.FloatRange(min=0), help="0: greedy.")
@click.option("--seed", default=0, show_default=True, type=int)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Every run, as JSON.")
@click.option("--dtype", type=DTYPE, help="Default: the models' own.")
@click.option("--device", callback=DEVICE, default=default_device, help="[default: cuda where there is one, else cpu]")
@click.option("--threads", default=available_cores(), type=click.IntRange(min=1), help="Default: all cores.")
def command(
    model: str,
    draft: str,
    prompts: Path,
    limit: int | None,
    out: Path | None,
    dtype: str | None,
    device: str,
    threads: int,
    **given: Any,
) -> None:
    """How likely MODEL finds what --draft writes alone, and what that, MODEL alone and both together cost.

    Each way continues every prompt, in turn. Log-likelihoods are MODEL's, per new token, in nats.
    """
    import torch

    from lade.applications.likelihood import compare, report, standings, ways

    with usage("--prompts"):
        texts = read_prompts(prompts, limit)
    with usage("--out"):
        check_folder(out)
    torch.set_num_threads(threads)
    target, tokenizer = load_model(model, dtype=dtype, device=device)
    writer, _ = load_model(draft, dtype=dtype, device=device)
    with usage("--draft"):
        writers = ways(target, writer, given["tokens"], arguments(given))
    ids = [(text.id, tokenizer(text.text, return_tensors="pt").input_ids.to(target.device)) for text in texts]
    with progress_bar("runs") as progress:
        runs = compare(target, ids, writers, given["seed"], progress)
    console = Console()
    console.print(table(standings(runs)))
    if out is not None:
        about = given | {"model": model, "draft": draft, "threads": threads, "machine": describe(target.device)}
        put_in_place(out, (json.dumps(report(runs, about), indent=2) + "\n").encode())
        console.print(str(out))


def check_folder(out: Path | None) -> None:
    """ValueError where the report could not be written."""
    if out is not None and not out.resolve().parent.is_dir():
        raise ValueError(f"there is no folder {out.resolve().parent}")


def arguments(given: dict[str, Any]) -> dict[str, Any]:
    """What every way's `generate` is told."""
    sampling: dict[str, Any] = {"do_sample": False}
    if given["temperature"]:
        sampling = {"do_sample": True, "temperature": given["temperature"], "top_k": 0, "top_p": 1.0}
    return {"max_new_tokens": given["max_new_tokens"]} | sampling


def table(found: list[Standing]) -> Table:
    from lade.applications.likelihood import MEBIBYTE

    shown = Table(caption="peak: of the process, both models loaded (on CUDA: what is allocated)")
    shown.add_column("written by")
    for column in ("log-likelihood", "new tokens", "latency s", "tokens/s", "peak MiB"):
        shown.add_column(column, justify="right")
    for way in found:
        shown.add_row(
            way.way,
            f"{way.log_likelihood:.3f}",
            str(way.new_tokens),
            f"{way.latency:.3f}",
            f"{way.tokens_per_second:.1f}",
            f"{way.peak_bytes / MEBIBYTE:.0f}",
        )
    return shown
