"""`lade likelihood`: the single-draft report, on the terminal and as JSON.

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
from lade.applications.bench.machine import describe
from lade.applications.bench.prompts import read_prompts
from lade.applications.exits import Command, usage
from lade.applications.options import (
    MODEL,
    draft_quant_option,
    limit_option,
    load_model,
    model_options,
    prompts_option,
    seed_option,
    temperature_option,
)
from lade.applications.outputs import check_folder_of
from lade.files.atomic import put_in_place
from lade.files.regularfile import MEBIBYTE
from lade.memory.warm.progress import progress_bar

if TYPE_CHECKING:
    from lade.applications.likelihood import WaySummary


@click.command("likelihood", cls=Command)
@click.argument("model", callback=MODEL)
@click.option("--draft", required=True, callback=MODEL, help="A smaller model with MODEL's tokenizer.")
@prompts_option
@click.option("--max-new-tokens", default=64, show_default=True, type=click.IntRange(min=1))
@renamed(
    "--draft-tokens",
    "--tokens",
    name="tokens",
    default=5,
    show_default=True,
    type=click.IntRange(min=1),
    help="Tokens drafted per step.",
)
@limit_option()
@temperature_option
@seed_option
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="JSON file for all runs.")
@draft_quant_option
@model_options
def command(
    model: str,
    draft: str,
    prompts: Path,
    limit: int | None,
    out: Path | None,
    dtype: str | None,
    device: str,
    quant: str | None,
    draft_quant: str | None,
    threads: int,
    **given: Any,
) -> None:
    """Compare MODEL, --draft, and both together: the likelihood of their texts under MODEL, and their cost.

    Each of the three continues every prompt, in turn. Log-likelihoods are means per new token, in nats.
    """
    import torch

    from lade.applications.likelihood import compare, report, summaries, ways

    with usage("--prompts"):
        texts = read_prompts(prompts, limit)
    with usage():
        check_folder_of("--out", out)
    torch.set_num_threads(threads)
    target, tokenizer = load_model(model, dtype=dtype, device=device, quant=quant or None)
    writer, _ = load_model(draft, dtype=dtype, device=device, quant=draft_quant)
    with usage("--draft"):
        writers = ways(target, writer, given["tokens"], arguments(given))
    ids = [(text.id, tokenizer(text.text, return_tensors="pt").input_ids.to(target.device)) for text in texts]
    with progress_bar("runs") as progress:
        runs = compare(target, ids, writers, given["seed"], progress)
    console = Console()
    console.print(table(summaries(runs)))
    if out is not None:
        quants = {"quant": quant or None, "draft_quant": draft_quant}
        about = given | {"model": model, "draft": draft, **quants, "threads": threads}
        about["machine"] = describe(target.device)
        put_in_place(out, (json.dumps(report(runs, about), indent=2) + "\n").encode())
        console.print(str(out))


def arguments(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `generate`, the same for all three."""
    sampling: dict[str, Any] = {"do_sample": False}
    if given["temperature"]:
        sampling = {"do_sample": True, "temperature": given["temperature"], "top_k": 0, "top_p": 1.0}
    return {"max_new_tokens": given["max_new_tokens"]} | sampling


def table(found: list[WaySummary]) -> Table:
    shown = Table(caption="peak: resident memory with both models loaded (on CUDA: allocated memory)")
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
