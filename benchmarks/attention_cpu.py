"""Attention of one draft tree on a CPU: a prefix without a mask, merged with the tree, against masks over all keys.

Three ways compute the same layers in turn: "dense" is a mask [1, 1, T, K] given to transformers' SDPA attention, which
repeats keys and values for each query head of a group (how lade did it up to 0.1); "masked" folds the query heads of a
group into the query axis; "lade" is what lade chooses for the shape by its own timing. A round is one forward of each:
the masks made once, then every layer. The figures are medians of ratios of process CPU time.
Needs no data, no model and no network: `python benchmarks/attention_cpu.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from random import Random
from statistics import median
from types import SimpleNamespace
from typing import Any

import click
import torch
from printing import Report
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from lade.applications.bench.machine import available_cores, describe
from lade.drafters import compiling
from lade.target.available import ways_of
from lade.target.choice import attend, choice_for
from lade.target.masks import RowMask
from lade.target.rowattention import PackedKind
from lade.target.ways import Call, Masked

WARM_UP = 3
HEADS = {"9/3 x 64": (9, 3, 64), "8/2 x 64": (8, 2, 64), "32/8 x 128": (32, 8, 128)}  # query heads, heads, head size
USUAL = ways_of("sdpa", torch.device("cpu"))
Layer = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # query, key, value


@dataclass
class Timing:
    """Milliseconds of a forward's attention, and ratios of other ways to lade's."""

    heads: str
    context: int
    way: str
    dense_ms: float
    masked_ms: float
    lade_ms: float
    dense_ratio: float
    masked_ratio: float
    difference: float  # the largest, of outputs

    def __str__(self) -> str:
        return (
            f"{self.heads:10}  context {self.context:5}  "
            f"dense {self.dense_ms:8.2f} ms  masked {self.masked_ms:8.2f} ms  "
            f"lade ({self.way}) {self.lade_ms:8.2f} ms  dense/lade {self.dense_ratio:.2f}  "
            f"masked/lade {self.masked_ratio:.2f}  outputs differ by {self.difference:.1e}"
        )


class Forward:
    """The attention of all layers of a forward of one tree behind a context of random keys and values."""

    def __init__(self, heads: tuple[int, int, int], context: int, nodes: int, layers: int, dtype: torch.dtype) -> None:
        queries, shared, size = heads
        self.context, self.group = context, queries // shared
        self.dtype = dtype
        self.visible = _tree(nodes)
        buffers = [torch.randn(2, 1, shared, context + nodes + 256, size, dtype=dtype) for _ in range(layers)]
        self.layers: list[Layer] = [
            (torch.randn(1, nodes, queries, size, dtype=dtype).transpose(1, 2), *buffer[:, :, :, : context + nodes])
            for buffer in buffers
        ]

    def dense(self) -> torch.Tensor:
        mask = self._mask(self.context)[None, None]
        module: Any = SimpleNamespace(num_key_value_groups=self.group, is_causal=True)
        found = [sdpa_attention_forward(module, *layer, mask)[0] for layer in self.layers]
        return found[-1]

    def masked(self) -> torch.Tensor:
        way, kind = Masked(), self._kind()
        return [way.attend(Call(kind, *layer)) for layer in self.layers][-1]

    def lade(self) -> torch.Tensor:
        kind = self._kind()
        calls = (Call(kind, *layer) for layer in self.layers)
        return [attend(kind.choice(USUAL, call), call)[0] for call in calls][-1]

    def way(self) -> str:
        """The name of the way that lade chooses."""
        choice = choice_for(USUAL, Call(self._kind(), *self.layers[0]))
        while choice.best is None:
            self.lade()
        return choice.best.name

    def _kind(self) -> PackedKind:
        nodes = len(self.visible)
        keys = self.context + nodes
        return PackedKind(keys, [(0, keys)], [RowMask(self._mask, self.context, 0)], [nodes])

    def _mask(self, keys: int) -> torch.Tensor:
        nodes = len(self.visible)
        mask = torch.zeros(nodes, keys + nodes, dtype=self.dtype)
        mask[:, keys:].masked_fill_(~self.visible, torch.finfo(self.dtype).min)
        return mask


def _tree(nodes: int) -> torch.Tensor:
    """[T, T] bool of a random tree."""
    visible, noise = torch.eye(nodes, dtype=torch.bool), Random(1)
    for node in range(1, nodes):
        visible[node] |= visible[noise.randrange(node)]
    return visible


@torch.no_grad()
def measure(heads: str, context: int, nodes: int, layers: int, dtype: torch.dtype, rounds: int) -> Timing:
    torch.manual_seed(0)
    forward = Forward(HEADS[heads], context, nodes, layers, dtype)
    chosen = forward.way()
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "dense": forward.dense,
        "masked": forward.masked,
        "lade": forward.lade,
    }
    difference = float((forward.lade() - forward.dense()).abs().max())
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(WARM_UP + rounds):
        for name in ways if number % 2 else reversed(ways):
            began = time.process_time()
            ways[name]()
            if number >= WARM_UP:
                taken[name].append(1000 * (time.process_time() - began))
    ratios = {name: median(other / own for other, own in zip(taken[name], taken["lade"], strict=True)) for name in ways}
    usual = {name: median(times) for name, times in taken.items()}
    return Timing(
        heads,
        context,
        chosen,
        *(usual[name] for name in ("dense", "masked", "lade")),
        ratios["dense"],
        ratios["masked"],
        difference,
    )


@click.command()
@click.option("--heads", multiple=True, default=tuple(HEADS)[:2], show_default=True, type=click.Choice(tuple(HEADS)))
@click.option(
    "--context", "contexts", multiple=True, default=(256, 2048, 8192), show_default=True, type=click.IntRange(min=1)
)
@click.option("--nodes", default=32, show_default=True, type=click.IntRange(min=1), help="Of the tree.")
@click.option("--layers", default=8, show_default=True, type=click.IntRange(min=1))
@click.option("--rounds", default=30, show_default=True, type=click.IntRange(min=2))
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(("bfloat16", "float32")))
@click.option("--threads", default=available_cores(), type=click.IntRange(min=1), help="[default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def main(
    heads: tuple[str, ...],
    contexts: tuple[int, ...],
    nodes: int,
    layers: int,
    rounds: int,
    dtype: str,
    threads: int,
    as_json: bool,
) -> None:
    """Time the attention of a tree in lade's way against masks over all keys."""
    torch.set_num_threads(threads)
    compiling.begin()
    compiling.wait()
    report, timings = Report(describe(torch.device("cpu")), as_json), list[Timing]()
    for each in heads:
        for context in contexts:
            timings.append(measure(each, context, nodes, layers, getattr(torch, dtype), rounds))
            report.line(str(timings[-1]))
    given = {"nodes": nodes, "layers": layers, "dtype": dtype, "rounds": rounds}
    report.end(**given, timings=[asdict(each) for each in timings])


if __name__ == "__main__":
    main()
