"""Attention of one layer on a CUDA device: a 64-node tree beside a one-token step and PyTorch's dense attention.

    python benchmarks/attention.py
    python benchmarks/attention.py --heads "32/8 x 128" --context 512 --context 8192 --json

Prints, for each context, the median time of the kernel for one node and for the tree, that of PyTorch's attention with
one dense mask and with repeated keys, as transformers calls it, and both errors against float64. Calls are timed by
events of the device, in turn, over enough copies of the keys that none stays in its cache. Takes under a minute after
the kernel is compiled. `--device cpu` tries it in Triton's interpreter, with TRITON_INTERPRET=1; its times say nothing.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import click
import torch
from torch.nn.functional import scaled_dot_product_attention

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from lade.applications.options import checked  # noqa: E402
from lade.kernels import reference  # noqa: E402
from lade.kernels.launch import attend  # noqa: E402
from lade.kernels.rows import Row, Rows, Rules  # noqa: E402
from lade.models.device import as_device  # noqa: E402

BOUNDS = {512: 1.1, 8192: 1.25}  # time of the tree, in that of one node
FASTER = {8192: 1.5}  # time of dense attention, in that of the tree
CACHE = 1 << 28  # bytes of keys and values that are gone over between two calls on the same


@click.command()
@click.option("--heads", default="32/8 x 128", show_default=True, help="Heads of queries, of keys, and their size.")
@click.option("--context", "contexts", multiple=True, type=click.IntRange(1), default=(512, 8192), show_default=True)
@click.option("--nodes", default=64, show_default=True, type=click.IntRange(2), help="Nodes of the tree.")
@click.option("--dtype", default="bfloat16", show_default=True, type=click.Choice(["bfloat16", "float16", "float32"]))
@click.option("--device", default="cuda", show_default=True, callback=checked(as_device))
@click.option("--rounds", default=200, show_default=True, type=click.IntRange(1), help="Timed calls of each.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    heads: str, contexts: tuple[int, ...], nodes: int, dtype: str, device: str, rounds: int, as_json: bool
) -> None:
    """Measure attention of a draft tree; exit status 1 if a bound is not held."""
    counts, size = heads.split("x")
    queries, shared = map(int, counts.split("/"))
    found = [
        _measured((queries, shared, int(size)), context, nodes, getattr(torch, dtype), torch.device(device), rounds)
        for context in contexts
    ]
    where = torch.cuda.get_device_name() if device.startswith("cuda") else device
    if as_json:
        click.echo(json.dumps({"device": where, "dtype": dtype, "heads": heads, "contexts": found}))
    else:
        click.echo(f"{where}, {dtype}, {heads}, {nodes} nodes, torch {torch.__version__}")
        for line in found:
            click.echo(_shown(line))
    raise SystemExit(0 if all(line["held"] for line in found) else 1)


def _measured(
    heads: tuple[int, int, int], context: int, nodes: int, dtype: torch.dtype, device: torch.device, rounds: int
) -> dict[str, Any]:
    """Times in microseconds, and errors."""
    queries, shared, size = heads
    torch.manual_seed(0)
    copies = 1 if device.type == "cpu" else max(1, CACHE // (2 * shared * (context + nodes) * size * dtype.itemsize))
    states = [torch.randn(2, shared, context + nodes, size, device=device).to(dtype) for _ in range(copies)]
    query = torch.randn(queries, nodes, size, device=device).to(dtype)
    tree, one = _tree(context, nodes, device), Rows.of([Row(0, 1, 0, context, 0, 1)], [0], device)
    rules = Rules(size**-0.5)
    mask = _mask(tree).to(dtype)
    turns = {
        "one": lambda keys, values: attend(query[:, :1], keys, values, one, rules),
        "tree": lambda keys, values: attend(query, keys, values, tree, rules),
        "dense": lambda keys, values: _dense(query, keys, values, mask, size**-0.5),
        "one_sdpa": lambda keys, values: _dense(query[:, :1], keys[:, :-nodes], values[:, :-nodes], None, size**-0.5),
    }
    times = _timed(turns, states, device, rounds)
    keys, values = states[0]
    exact = reference.attend(query, keys, values, tree, rules, torch.float64)
    errors = {name: (turns[name](keys, values).double() - exact).abs().max().item() for name in ("tree", "dense")}
    line = {"context": context, "microseconds": times, "errors": errors, "nodes": nodes}
    line["of_one"] = times["tree"] / times["one"]
    line["of_one_sdpa"] = times["tree"] / times["one_sdpa"]
    line["dense_of_tree"] = times["dense"] / times["tree"]
    line["held"] = (
        line["of_one"] <= BOUNDS.get(context, float("inf"))
        and line["dense_of_tree"] >= FASTER.get(context, 0.0)
        and errors["tree"] <= errors["dense"]
    )
    return line


def _tree(context: int, nodes: int, device: torch.device) -> Rows:
    from treerows import tree_row

    integers: list[int] = []
    row = tree_row(Random(0), 0, 0, (context, nodes, nodes), integers)
    return Rows.of([Row(0, nodes, 0, context, 0, nodes, row.tree)], integers, device)


def _mask(rows: Rows) -> torch.Tensor:
    """[t, K] float mask of the only row."""
    first, nodes, keys, held, origin, _, columns, tree = rows.table[0].tolist()
    seen = reference.visible(Row(first, nodes, keys, held, origin, columns, tree), rows.integers, Rules(1.0))
    return torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, -torch.inf)


def _dense(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """[T, heads, D] as transformers calls it: with repeated keys where there is a mask."""
    group = query.shape[0] // keys.shape[0]
    if mask is None:
        found = scaled_dot_product_attention(query[None], keys[None], values[None], scale=scale, enable_gqa=group > 1)
    else:
        wide = (states.repeat_interleave(group, 0)[None] for states in (keys, values))
        found = scaled_dot_product_attention(query[None], *wide, mask[None, None], scale=scale)
    return found[0].transpose(0, 1)


def _timed(
    turns: dict[str, Callable[..., torch.Tensor]], states: list[torch.Tensor], device: torch.device, rounds: int
) -> dict[str, float]:
    """Median microseconds of each, measured in turn after three calls that compile and warm up."""
    for call in turns.values():
        for _ in range(3 if device.type == "cuda" else 0):
            call(*states[0])
    clock = _on_device if device.type == "cuda" else _on_host
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for turn in range(rounds):
        for number, (name, call) in enumerate(turns.items()):
            keys, values = states[(turn * len(turns) + number) % len(states)]
            seconds[name].append(clock(call, keys, values))
    return {name: 1e6 * median(times) for name, times in seconds.items()}


def _on_device(call: Callable[..., torch.Tensor], keys: torch.Tensor, values: torch.Tensor) -> float:
    """By events around the work; a long sleep of the device before hides the launches of the host."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1_000_000)
    begin.record()
    call(keys, values)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000


def _on_host(call: Callable[..., torch.Tensor], keys: torch.Tensor, values: torch.Tensor) -> float:
    begin = time.perf_counter()
    call(keys, values)
    return time.perf_counter() - begin


def _shown(line: dict[str, Any]) -> str:
    times, errors = line["microseconds"], line["errors"]
    return (
        f"{line['context']:6} keys: one node {times['one']:.1f} µs (PyTorch {times['one_sdpa']:.1f}), tree "
        f"{times['tree']:.1f} ({line['of_one']:.2f} of one node, {line['of_one_sdpa']:.2f} of PyTorch's), dense "
        f"{times['dense']:.1f} ({line['dense_of_tree']:.2f} of the tree); errors {errors['tree']:.2e}, dense "
        f"{errors['dense']:.2e}: {'held' if line['held'] else 'BROKEN'}"
    )


if __name__ == "__main__":
    main()
