"""A static step's time on an H100, simulated from its kernels: no accelerator is needed, and none was asked.

The step runs on the meta device. Every operation that would launch a kernel counts, with the bytes it reads and writes
and its arithmetic. `ASSUMED` is the model of the device; the host's time is measured here. Figures are to be checked
against `benchmarks/accelerator.py` on a device: `python benchmarks/simulated_step.py --shape 7B`.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any
from unittest.mock import patch

import click
import torch
from integerlists import positive_integers
from static_steps import random_model, tree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from transformers import DynamicCache, LlamaForCausalLM

from lade.applications.widen import SHAPES
from lade.memory.predictions import TOP
from lade.static.choices import Greedy
from lade.static.inputs import StepInputs, StepRow, size_of
from lade.static.packing import Packing
from lade.static.rounds.growing import Growing
from lade.static.rounds.recall import LONGEST, Recall
from lade.static.slots import StaticSlots
from lade.static.walking import WalkingStep, taken

META = torch.device("meta")
ROUNDS = 50  # of the host's measured work
VIEWS = ("view", "expand", "transpose", "permute", "slice", "select", "unsqueeze", "squeeze", "split", "t.default")
VIEWS += ("detach", "alias", "unbind", "as_strided", "lift", "_unsafe_view")
ANCHORS = ("mm", "bmm", "addmm", "attention", "index_copy_", "index_select", "gather", "topk", "embedding")
PARTS = ("index_select", "gather", "embedding", "index.Tensor")  # read of their first argument what they return


@dataclass(frozen=True)
class Assumptions:
    """An H100 SXM. No value is measured by this project yet.

    Attributes:
        bandwidth: bytes per second of a copy, about 0.9 of the 3.35e12 that the data sheet says.
        operations: of bfloat16 matrix products per second, about 0.7 of the data sheet's 989e12.
        kernel: seconds of the shortest kernel of a captured graph.
        gap: seconds between two kernels of a captured graph that depend on each other.
        launch: seconds from the launch of a graph to its first kernel.
        transfer: seconds of a pinned copy of some kilobytes, one way.
        fused_attention: attention is one kernel per layer, as SDPA's fused ones are; not its parts.
        host_hidden: whether the host's work overlaps with the device's; it does not yet. Drafting is not counted.
    """

    bandwidth: float = 3.0e12
    operations: float = 700e12
    kernel: float = 1.2e-6
    gap: float = 0.8e-6
    launch: float = 8e-6
    transfer: float = 8e-6
    fused_attention: bool = True
    host_hidden: bool = False


ASSUMED = Assumptions()


@dataclass
class Kernels(TorchDispatchMode):
    """Counts kernels, and sums up their seconds.

    Args:
        fused: neighbouring operations that are no matrix product, attention or move are one kernel, as long as the
            longest of them: about what a compiler makes of them.
    """

    fused: bool = False
    seconds: float = 0.0
    moved: int = 0  # bytes read and written
    names: Counter[str] = field(default_factory=Counter)
    _running: float = 0.0  # seconds of the fused kernel that goes on

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        name = str(function).removeprefix("aten.")
        if not name.startswith(VIEWS) and not name.startswith("empty"):
            packet = function._overloadpacket
            arithmetic = (
                flop_registry[packet](*args, **(kwargs or {}), out_val=output) if packet in flop_registry else 0
            )
            self.add(name, _bytes(name, args, output), arithmetic)
        return output

    def add(self, name: str, moved: int, arithmetic: int) -> None:
        self.moved += moved
        busy = max(moved / ASSUMED.bandwidth, arithmetic / ASSUMED.operations, ASSUMED.kernel)
        plain = name.partition(".")[0]
        if self.fused and plain not in ANCHORS:
            new = not self._running
            self.seconds += max(busy - self._running, 0.0) + ASSUMED.gap * new
            self._running = max(busy, self._running)
            self.names["fused"] += new
            return
        self._running = 0.0
        self.seconds += busy + ASSUMED.gap
        self.names[plain] += 1

    def attention(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *others: Any, **options: Any
    ) -> torch.Tensor:
        """In place of SDPA."""
        mask = options.get("attn_mask")
        moved = sum(each.nbytes for each in (query, key, value, query) + (() if mask is None else (mask,)))
        arithmetic = 4 * query[..., 0].numel() * key.shape[2] * query.shape[3]
        with _counting_paused():
            output = query.new_empty(*query.shape[:3], value.shape[3])
        self.add("attention", moved, arithmetic)
        return output


def _counting_paused() -> Any:
    return torch.utils._python_dispatch._disable_current_modes()


def _bytes(name: str, args: Sequence[Any], output: Any) -> int:
    written = sum(each.nbytes for each in _tensors([output]))
    if name.startswith(PARTS):
        return 2 * written
    if name.startswith("index_copy_"):
        return 2 * int(args[3].nbytes)
    return written + sum(each.nbytes for each in _tensors(args))


def _tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _tensors(value)
    return found


@torch.no_grad()
def simulated(model: LlamaForCausalLM, context: int, nodes: int, fused: bool) -> dict[str, Any]:
    """Milliseconds of one step with a tree of so many nodes, and what they are made of."""
    cache, kernels = DynamicCache(config=model.config), Kernels(fused)
    model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=META), past_key_values=cache, use_cache=True)
    slots = StaticSlots(cache.layers, 1, context + nodes, META)
    slots.reach.capacity = context + nodes  # a kernel reads what is there; masks hide the rest of a slot
    step = WalkingStep(model, slots, Greedy())
    size = size_of([StepRow(0, tree(nodes))])
    inputs = StepInputs(torch.zeros(size.numbers, dtype=torch.long, device=META), size)
    with ExitStack() as scopes:
        for place in ("torch.nn.functional", "lade.target.grouped"):
            scopes.enter_context(patch(f"{place}.scaled_dot_product_attention", kernels.attention))
        scopes.enter_context(kernels)
        output, _ = step(inputs)
    host = host_seconds(nodes, tuple(output.shape))
    whole = kernels.seconds + ASSUMED.launch + 2 * ASSUMED.transfer + host
    reads = sum(each.nbytes for each in model.parameters()) - model.get_input_embeddings().weight.nbytes
    limit = reads / ASSUMED.bandwidth
    return {
        "context": context, "nodes": nodes, "fused": fused, "kernels": sum(kernels.names.values()), "transfers": 2,
        "moved_gb": kernels.moved / 1e9, "device_ms": 1e3 * kernels.seconds, "host_ms": 1e3 * host,
        "step_ms": 1e3 * whole, "limit_ms": 1e3 * limit, "share_of_limit": limit / whole,
        "most": dict(kernels.names.most_common(8)),
    }  # fmt: skip


@torch.no_grad()
def device_drafting(nodes: int, vocabulary: int, fused: bool) -> dict[str, Any]:
    """What a step's drafting on the device takes: a tree of so many nodes is grown, and its predictions are learned.

    Args:
        fused: the growth; what is learned is not.
    """
    recall, slot = Recall(2, vocabulary, META), torch.zeros(1, dtype=torch.long, device=META)
    growing, grown, learned = Growing(recall, None, nodes), Kernels(fused), Kernels(False)
    with grown:
        tree = growing.grow(slot, torch.zeros(1, LONGEST, dtype=torch.long, device=META))
    predicted = torch.zeros(nodes, TOP, device=META)
    slots = torch.zeros(nodes, dtype=torch.long, device=META)
    with learned:
        recall.learn(slots, tree.contexts[0], predicted.int(), predicted, slots == 0)
    kernels = sum((grown.names + learned.names).values())
    return {
        "nodes": nodes, "fused": fused, "kernels": kernels, "device_ms": 1e3 * (grown.seconds + learned.seconds),
    }  # fmt: skip


def host_seconds(nodes: int, output: tuple[int, ...]) -> float:
    """Processor time of packing a step's inputs and reading its output, on this machine."""
    draft, back = tree(nodes), torch.zeros(output, dtype=torch.int32)
    size = size_of([StepRow(0, draft)])
    packings, found = {size: Packing(size, 1, 4096)}, []  # made once per size
    for _ in range(ROUNDS):
        began = time.process_time()
        rows = [StepRow(0, draft)]
        packings[size_of(rows)].fill(rows)
        taken(back, [draft])
        found.append(time.process_time() - began)
    return median(found)


@click.command()
@click.option("--shape", default="7B", show_default=True, type=click.Choice(list(SHAPES)))
@click.option("--contexts", default="512,8192", show_default=True, callback=positive_integers)
@click.option("--nodes", default="1,64", show_default=True, callback=positive_integers)
def main(shape: str, contexts: list[int], nodes: list[int]) -> None:
    """Print the simulated times of steps as one JSON object."""
    model = random_model(SHAPES[shape], max(contexts) + 512, META, torch.bfloat16)
    cases = itertools.product((False, True), contexts, nodes)
    found = [simulated(model, context, count, fused) for fused, context, count in cases]
    trees = itertools.product((False, True), [count for count in nodes if count > 1])
    drafts = [device_drafting(count, model.config.vocab_size, fused) for fused, count in trees]
    told = {"shape": shape, "assumed": asdict(ASSUMED), "steps": found, "drafting on the device": drafts}
    click.echo(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
