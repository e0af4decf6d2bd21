"""Static steps of a few sizes on any device: milliseconds of the device and of the host, and of a layer's products.

    python benchmarks/static_steps.py --shape 7B

Weights are random, so no model is needed: what a step takes does not depend on them. `accelerator.py` measures steps of
a model with the same functions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import click
import torch
from integerlists import positive_integers
from rich.table import Table
from timed_parts import waited
from torch.nn.functional import linear
from transformers import LlamaConfig, LlamaForCausalLM

from lade.applications.bench.machine import describe
from lade.applications.options import checked, default_device
from lade.applications.output import JSON, show
from lade.applications.widen import SHAPES
from lade.base.seconds import least_seconds
from lade.core.tree import Draft, TreeBuilder
from lade.facts.vocabulary import readable
from lade.kernels import available, between, products
from lade.kernels.launch import attend
from lade.kernels.sizes import FEW, MOST
from lade.models.device import as_device
from lade.pace.roofline import measured, roofline_of
from lade.static.buckets import rows_bucket
from lade.static.graphs import Graphs, capture
from lade.static.inputs import StepRow
from lade.static.shelf import shapes_of
from lade.static.slots import StaticSlots
from lade.static.step import StaticStep

NODES = (1, 64)  # of the steps that are timed
ROUNDS = 20  # steps of each
TOKENS = (1, 16, 64)  # of the products that are timed
COPIED = 1 << 30  # bytes of the buffer that shows the bandwidth; smaller ones show less of a fast one


def steps(
    model: Any, contexts: Sequence[int], *, fused: bool = False, kernel: Any = None, multiplies: bool | None = None
) -> list[dict[str, Any]]:
    """Static steps of a few sizes: their time on the device and on the host, and whether they are captured.

    Args:
        fused: compile them first.
        kernel: computes attention.
        multiplies: whether lade's kernels compute products; `None`: where they are faster.
    """
    found = []
    for context in contexts:
        graphs = graphs_for(model, 1, context + max(NODES), kernel, fused)
        if multiplies is not None:
            graphs.step.multiplies |= {FEW: multiplies, MOST: multiplies}
        for nodes in NODES:
            row = StepRow(0, tree(nodes), context)
            graphs.run([row])  # captures
            device, host, whole = zip(*(timed_step(graphs, row) for _ in range(ROUNDS)), strict=True)
            found.append(
                {
                    "context": context, "nodes": nodes, "captured": graphs.captures,
                    "device_ms": median(device), "host_ms": median(host), "whole_ms": median(whole),
                }
            )  # fmt: skip
    return found


def timed_step(graphs: Graphs, row: StepRow) -> tuple[float, float, float]:
    """Milliseconds of the device from its first kernel to its last, of the host until the step is launched, and of
    both until the host has read the output."""
    began, events = waited(graphs.device), []
    if graphs.device.type == "cuda":
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
    output, _ = graphs.run([row])
    launched = time.perf_counter()
    if events:
        events[1].record()
    graphs.back(output)
    whole = 1e3 * (waited(graphs.device) - began)
    return (events[0].elapsed_time(events[1]) if events else whole), 1e3 * (launched - began), whole


def graphs_for(model: Any, rows: int, tokens: int, kernel: Any = None, fused: bool = False) -> Graphs:
    """Of steps in slots for so many tokens, those of the step included."""
    slots = StaticSlots(shapes_of(model), rows_bucket(rows), tokens, model.device)
    return Graphs(StaticStep(model, slots, readable(model), kernel), fused)


def tree(nodes: int) -> Draft:
    """A tree with two children per node."""
    builder = TreeBuilder(3)
    while len(builder.tokens) < nodes:
        builder.queries.add(builder.add((len(builder.tokens) - 1) // 2, 3 + len(builder.tokens) % 2, "made"))
    return builder.build()


def ways() -> dict[str, dict[str, Any]]:
    """Static steps of one row, by what computes them."""
    return {
        "SDPA with masks": {},
        "lade's kernels, products of PyTorch": {"kernel": attend, "multiplies": False},
        "all kernels of lade": {"kernel": attend, "multiplies": True},
    }


def random_model(shape: dict[str, int], positions: int, device: torch.device, dtype: torch.dtype) -> LlamaForCausalLM:
    """A LLaMA of these sizes, made on the device."""
    sizes = {name: value for name, value in shape.items() if name != "num_layers"}
    config = LlamaConfig(**sizes, num_hidden_layers=shape["num_layers"], max_position_embeddings=positions)
    with device:
        model = LlamaForCausalLM._from_config(config, attn_implementation="sdpa", dtype=dtype)
    return model.eval().requires_grad_(False)


@torch.no_grad()
def layer_products(model: LlamaForCausalLM) -> list[dict[str, Any]]:
    """Microseconds of a layer's products and of the head, by PyTorch and by lade, read from all layers in turn so that
    no weight lies in a cache."""
    layers, found = model.model.layers, []
    kinds: dict[str, list[list[Any]]] = {
        "query, key, value": [[each.self_attn.q_proj, each.self_attn.k_proj, each.self_attn.v_proj] for each in layers],
        "output": [[each.self_attn.o_proj] for each in layers],
        "gates": [[each.mlp.gate_proj, each.mlp.up_proj] for each in layers],
        "down": [[each.mlp.down_proj] for each in layers],
        "head": [[model.lm_head]],
    }
    for name, groups in kinds.items():
        weights = [[layer.weight for layer in group] for group in groups]
        for tokens in TOKENS:
            states = torch.randn(1, tokens, weights[0][0].shape[1], dtype=model.dtype, device=model.device)
            row: dict[str, Any] = {"products": name, "tokens": tokens}
            for way, compute in (("pytorch", _theirs), ("lade", _ours)):
                run, _ = capture(partial(_all, partial(compute, name == "gates", states), weights), model.device)
                run()
                row[f"{way}_us"] = 1e6 * least_seconds(run, model.device) / len(weights)
            found.append(row | {"bytes": sum(weight.nbytes for weight in weights[0])})
    return found


def _all(compute: Callable[[list[torch.Tensor]], Any], weights: list[list[torch.Tensor]]) -> list[Any]:
    return [compute(group) for group in weights]


def _theirs(pair: bool, states: torch.Tensor, weights: list[torch.Tensor]) -> Any:
    found = [linear(states, weight) for weight in weights]
    return between.gated(*found) if pair else found


def _ours(pair: bool, states: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    return products.gated(states, *weights) if pair else products.linear(states, weights, [None] * len(weights))


def table_of(found: dict[str, list[dict[str, Any]]]) -> Table:
    """Milliseconds of the device per step, and in brackets until the host has read its output."""
    table = Table(title="milliseconds of a step")
    table.add_column("way")
    sizes = [(step["context"], step["nodes"]) for step in next(iter(found.values()))]
    for context, nodes in sizes:
        table.add_column(f"{context} tokens, {nodes} nodes", justify="right")
    for way, steps_of_way in found.items():
        table.add_row(way, *(f"{step['device_ms']:.2f} ({step['whole_ms']:.2f})" for step in steps_of_way))
    return table


def table_of_products(found: list[dict[str, Any]], bandwidth: float) -> Table:
    """Microseconds, and the least that reading the weights takes."""
    table = Table(title="microseconds of products")
    for column in ("products", "tokens", "read", "PyTorch", "lade"):
        table.add_column(column, justify="right")
    for row in found:
        times = row["bytes"] / bandwidth * 1e6, row["pytorch_us"], row["lade_us"]
        table.add_row(row["products"], str(row["tokens"]), *(f"{time:.1f}" for time in times))
    return table


@click.command()
@click.option("--shape", default="7B", show_default=True, type=click.Choice(list(SHAPES)))
@click.option("--device", default=default_device, callback=checked(as_device), help="[default: cuda if available]")
@click.option("--dtype", default="bfloat16", show_default=True, type=click.Choice(["bfloat16", "float16", "float32"]))
@click.option("--contexts", default="512,8192", show_default=True, callback=positive_integers, help="Of the steps.")
@JSON
def main(shape: str, device: str, dtype: str, contexts: list[int], as_json: bool) -> None:
    """Measure static steps of a LLaMA with random weights."""
    place = torch.device(device)
    model = random_model(SHAPES[shape], max(contexts) + 512, place, getattr(torch, dtype))
    speeds = measured(place, model.dtype, **{"copied": COPIED} if place.type == "cuda" else {})
    limit = 1e3 * roofline_of(model, speeds).seconds(0)
    runs = available.runs(place)
    found = {name: steps(model, contexts, **given) for name, given in ways().items() if runs or not given}
    multiplied = layer_products(model) if runs else []
    tables = [table_of(found), *([table_of_products(multiplied, speeds.bandwidth)] if multiplied else [])]
    told = f"all weights are read in {limit:.2f} ms: a copy moves {speeds.bandwidth / 1e12:.2f} TB/s"
    machine = describe(place) | {"shape": shape, "dtype": dtype, "weights_ms": limit}
    show(*tables, told, found={"machine": machine, "steps": found, "products": multiplied}, as_json=as_json)


if __name__ == "__main__":
    main()
