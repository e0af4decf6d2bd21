"""Steps whose linear layers are loops (`lade.target.fused.products`) over steps with PyTorch's, on this machine's CPU.

One target of a model computes the same random trees both ways in rounds, in turn; the order alternates. The figure is
the median of the ratios of their times; the logits are compared, too. Where PyTorch is faster for a shape, it computes
both ways. `--over packed` compares with a second model, whose weights are packed (`lade.pack_weights`).
`python benchmarks/few_tokens.py smollm2-135m`
"""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from random import Random
from typing import Any

import click
import torch
from fused_layers import NODES, logits_of, target_of
from inturn import in_turn
from packed import tree

import lade
from lade.applications.bench.machine import available_cores, describe
from lade.core.tree import Draft
from lade.drafters import compiling
from lade.target.fused.products import MULTIPLY
from lade.target.model import HFTarget


def logits(target: HFTarget, draft: Draft, machine: Any) -> torch.Tensor:
    """With this machine code of the products; `None`: with PyTorch's."""
    known, MULTIPLY.machine = MULTIPLY.machine, machine
    try:
        return logits_of(target, draft)
    finally:
        MULTIPLY.machine = known


@click.command(context_settings={"show_default": True})
@click.argument("model", default="lade-code-8M")
@click.option(
    "--over", type=click.Choice(["PyTorch", "packed"]), default="PyTorch", help="What loops are compared with."
)
@click.option("--context", type=click.IntRange(1), default=256, help="Tokens of the prompt.")
@click.option("--rounds", type=click.IntRange(2), default=15)
@click.option("--threads", type=click.IntRange(1), default=available_cores())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(model: str, over: str, context: int, rounds: int, threads: int, as_json: bool) -> None:
    """Measure MODEL, a name or a folder, in float32."""
    torch.set_num_threads(threads)
    compiling.begin()
    compiling.wait()
    timings = list[dict[str, Any]]()
    machine = describe(torch.device("cpu")) | {"loops": "machine code" if MULTIPLY.ready else "none"}
    if not as_json:
        click.echo(json.dumps(machine))
    target, *packed = (
        target_of(lade.models.load(model, dtype="float32", pack=pack)[0], context, fused=True)
        for pack in ([False, True] if over == "packed" else [False])
    )
    for nodes in NODES:
        draft = tree(nodes, Random(nodes), target.vocabulary)
        other = partial(logits_of, packed[0], draft) if packed else partial(logits, target, draft, None)
        ways = [other, partial(logits, target, draft, MULTIPLY.machine)]
        ratio = in_turn(*ways, rounds)
        timings.append({"nodes": nodes, **asdict(ratio)})
        if not as_json:
            click.echo(f"{nodes:4} nodes  {ratio.told(over, 'loops')}")
    if as_json:
        click.echo(json.dumps({"machine": machine, "over": over, "rounds": rounds, "timings": timings}))


if __name__ == "__main__":
    main()
