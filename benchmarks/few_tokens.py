"""Steps of few tokens over the same steps in another way, on this machine's CPU.

A target of a model, plain in float32 or packed in bfloat16, computes the same random trees both ways in rounds, in
turn; the order alternates. The figure is the median of the ratios of their times; the logits are compared, too.
`--over` says what is compared:
`PyTorch`: products of layers by PyTorch with those by loops (`lade.target.fused.linear`), where loops are faster;
`products`: a call for each product with one call for all layers (`lade.target.fused.stack`);
`packed`: a second model, whose float32 weights are packed (`lade.pack_weights`), with the fastest way for this one.
`python benchmarks/few_tokens.py smollm2-135m`
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from random import Random
from typing import Any

import click
import torch
from fused_layers import NODES, logits_of, settle, target_of
from inturn import Compute, in_turn
from packed import tree
from printing import Report

import lade
from lade.applications.bench.machine import available_cores, describe
from lade.applications.options import MODEL
from lade.core.tree import Draft
from lade.drafters import compiling
from lade.target.fused.products import MULTIPLY
from lade.target.model import HFTarget
from lade.weights.blockloops import MULTIPLY_BLOCKS

LOOPS = MULTIPLY, MULTIPLY_BLOCKS
PACK = {"float32": False, "bfloat16": True}
SECOND = {"PyTorch": "loops", "products": "one call", "packed": "plain"}  # the way that is measured, by the other one


def logits(target: HFTarget, draft: Draft, loops: bool = True, one_call: bool | None = None) -> torch.Tensor:
    """With products by loops, or by PyTorch alone; `one_call` as of `FusedDecoder`."""
    assert target.fused is not None
    known = [entry.machine for entry in LOOPS]
    target.fused.one_call = one_call
    try:
        for entry in () if loops else LOOPS:
            entry.machine = None
        return logits_of(target, draft)
    finally:
        for entry, machine in zip(LOOPS, known, strict=True):
            entry.machine = machine


def pair_of(over: str, target: HFTarget, packed: HFTarget | None, draft: Draft) -> tuple[Compute, Compute]:
    """The two ways."""
    if packed is not None:
        settle(target, draft)
        return partial(logits, packed, draft), partial(logits, target, draft)
    by_products = partial(logits, target, draft, one_call=False)
    if over == "products":
        return by_products, partial(logits, target, draft, one_call=True)
    return partial(logits, target, draft, loops=False, one_call=False), by_products


@click.command(context_settings={"show_default": True})
@click.argument("model", default="lade-code-8M", callback=MODEL)
@click.option("--dtype", type=click.Choice([*PACK]), default="float32")
@click.option("--over", type=click.Choice([*SECOND]), default="PyTorch", help="The other way.")
@click.option("--context", type=click.IntRange(1), default=256, help="Tokens of the prompt.")
@click.option("--rounds", type=click.IntRange(2), default=15)
@click.option("--threads", type=click.IntRange(1), default=available_cores())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(model: str, dtype: str, over: str, context: int, rounds: int, threads: int, as_json: bool) -> None:
    """Measure MODEL, a name or a folder."""
    if over == "packed" and PACK[dtype]:
        raise click.UsageError(
            f"--over must be another one with --dtype {dtype}, whose weights are packed, got {over!r}"
        )
    torch.set_num_threads(threads)
    compiling.begin()
    compiling.wait()
    machine = describe(torch.device("cpu")) | {"loops": "machine code" if MULTIPLY.ready else "none"}
    report, timings = Report(machine, as_json), list[dict[str, Any]]()
    target = target_of(lade.models.load(model, dtype=dtype, pack=PACK[dtype])[0], context, fused=True)
    packed = None
    if over == "packed":
        packed = target_of(lade.models.load(model, dtype=dtype, pack=True)[0], context, fused=True)
    for nodes in NODES:
        draft = tree(nodes, Random(nodes), target.vocabulary)
        ratio = in_turn(*pair_of(over, target, packed, draft), rounds)
        timings.append({"nodes": nodes, **asdict(ratio)})
        report.line(f"{nodes:4} nodes  {ratio.told(over, SECOND[over])}")
    report.end(dtype=dtype, over=over, rounds=rounds, timings=timings)


if __name__ == "__main__":
    main()
