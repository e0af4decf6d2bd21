"""Steps with fused decoder layers (`lade.target.fused`) over steps with transformers' layers, on this machine's CPU.

Two targets of one model hold the same prompt and compute the same random trees in rounds, in turn; the order
alternates. The figure is the median of the ratios of their times; the logits are compared, too.
`python benchmarks/fused_layers.py smollm2-135m`
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from random import Random
from typing import Any

import click
import torch
from inturn import in_turn
from namelists import names_among
from packed import tree
from printing import Report
from transformers import GenerationConfig

import lade
from lade.applications.bench.machine import available_cores, describe
from lade.applications.options import MODEL
from lade.core.stats import Clock
from lade.core.tree import Draft
from lade.drafters import compiling
from lade.facts.positions import position_limit
from lade.models.load import DTYPES
from lade.target.fused.decoder import SAMPLES
from lade.target.fused.loops import NORMALISE
from lade.target.masks import layer_kinds
from lade.target.model import HFTarget
from lade.target.probe import empty_cache

NODES = (1, 2, 4, 8, 16, 32, 64)


@torch.inference_mode()
def target_of(model: Any, context: int, fused: bool) -> HFTarget:
    kinds, limit = layer_kinds(model.config), position_limit(model.config)
    target = HFTarget(model, empty_cache(model), kinds, limit, Clock(), packed=True, fused=fused)
    if fused and target.fused is None:
        raise click.UsageError(f"MODEL must be one whose layers are fused, got {type(model).__name__}")
    ids = torch.randint(model.config.vocab_size, (1, context), generator=torch.Generator().manual_seed(0))
    target.prefill(ids, GenerationConfig(), {"use_cache": True})
    return target


def logits_of(target: HFTarget, draft: Draft) -> torch.Tensor:
    return target.forward([0], [draft]).logits


@torch.inference_mode()
def settle(target: HFTarget, draft: Draft) -> None:
    """Compute this shape until all that is chosen by time is chosen."""
    for _ in range(2 * SAMPLES + 1):
        logits_of(target, draft)


@click.command(context_settings={"show_default": True})
@click.argument("model", default="lade-code-8M", callback=MODEL)
@click.option("--dtypes", default="bfloat16,float32", callback=names_among(DTYPES), help="Separated by commas.")
@click.option("--pack/--no-pack", default=True, help="Pack the weights, of both.")
@click.option("--context", type=click.IntRange(1), default=256, help="Tokens of the prompt.")
@click.option("--rounds", type=click.IntRange(2), default=15)
@click.option("--threads", type=click.IntRange(1), default=available_cores())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(model: str, dtypes: list[str], pack: bool, context: int, rounds: int, threads: int, as_json: bool) -> None:
    """Measure MODEL, a name or a folder, in each dtype."""
    torch.set_num_threads(threads)
    compiling.begin()
    compiling.wait()
    machine = describe(torch.device("cpu")) | {"loops": "machine code" if NORMALISE.ready else "Python"}
    report, timings = Report(machine, as_json), list[dict[str, Any]]()
    for dtype in dtypes:
        loaded = lade.models.load(model, dtype=dtype, pack=pack)[0]
        pair = [target_of(loaded, context, fused) for fused in (False, True)]
        for nodes in NODES:
            draft = tree(nodes, Random(nodes), loaded.config.vocab_size)
            for target in pair:
                settle(target, draft)
            found = in_turn(*(partial(logits_of, target, draft) for target in pair), rounds)
            timings.append({"dtype": dtype, "nodes": nodes, **asdict(found)})
            report.line(f"{dtype:9} {nodes:4} nodes  {found.told('transformers', 'fused')}")
    report.end(rounds=rounds, timings=timings)


if __name__ == "__main__":
    main()
