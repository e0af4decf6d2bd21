"""Forwards with packed weights (`lade.pack_weights`) over forwards with plain ones, on this machine's CPU.

A model is loaded twice and packed once. Both compute the same tokens in rounds, in turn, without a KV cache; the order
alternates. The figure is the median of plain time over packed time; the logits are compared, too.
`python benchmarks/packed_weights.py smollm2-135m`
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import click
import torch
from inturn import in_turn
from namelists import names_among
from printing import Report

import lade
from lade.applications.bench.machine import available_cores, describe
from lade.applications.options import MODEL
from lade.drafters import compiling
from lade.models.load import DTYPES

TOKENS = (1, 2, 4, 8, 16, 32, 64, 256)


def logits_of(model: Any, ids: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=ids, use_cache=False).logits
    return found


@click.command(context_settings={"show_default": True})
@click.argument("model", default="lade-code-8M", callback=MODEL)
@click.option("--dtypes", default="bfloat16,float32", callback=names_among(DTYPES), help="Separated by commas.")
@click.option("--rounds", type=click.IntRange(2), default=15)
@click.option("--threads", type=click.IntRange(1), default=available_cores())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(model: str, dtypes: list[str], rounds: int, threads: int, as_json: bool) -> None:
    """Measure MODEL, a name or a folder, in each dtype."""
    torch.set_num_threads(threads)
    compiling.begin()
    compiling.wait()
    report, timings = Report(describe(torch.device("cpu")), as_json), list[dict[str, Any]]()
    for dtype in dtypes:
        pair = [lade.models.load(model, dtype=dtype, pack=pack)[0] for pack in (False, True)]
        for tokens in TOKENS:
            ids = torch.randint(pair[0].config.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(tokens))
            found = in_turn(*(partial(logits_of, each, ids) for each in pair), rounds)
            timings.append({"dtype": dtype, "tokens": tokens, **asdict(found)})
            report.line(f"{dtype:9} {tokens:4} tokens  {found.told('plain', 'packed')}")
    report.end(rounds=rounds, timings=timings)


if __name__ == "__main__":
    main()
