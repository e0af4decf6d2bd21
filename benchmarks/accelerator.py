"""All measurements of one accelerator in one run: speeds of the device, static steps, and texts per second.

Needs a folder of weights and nothing else: `python benchmarks/accelerator.py FOLDER --json > found.json`. Every part
is on its own: one that fails leaves its error, and one for which no time is left says so. Methods decode the same
prompts in turn, in one process. On a CPU it shows that all parts run, and no more.
"""

from __future__ import annotations

import functools
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch

import lade
from lade.applications.bench.machine import describe
from lade.applications.bench.methods import METHODS, MethodOptions
from lade.applications.bench.suites.stories import SUITE
from lade.applications.text_measures import repetition
from lade.applications.widen import SHAPES
from lade.core.request import Request
from lade.core.stats import Clock
from lade.core.tree import Draft, TreeBuilder
from lade.drafters.factory import budget_of, drafter_for
from lade.engine.decoding import GREEDY_INVERSE_TEMPERATURE
from lade.engine.emission import AtOnce
from lade.engine.loop import DecodeLoop
from lade.engine.stopping import HostRule
from lade.engine.stream import Stream
from lade.facts.positions import position_limit
from lade.facts.vocabulary import readable
from lade.files.atomic import put_in_place
from lade.kernels.launch import attend
from lade.models import load
from lade.models.widen import own_sizes, widen
from lade.pace.bucketed import Bucketed
from lade.pace.cost import StepCost
from lade.pace.costfile import policy_for
from lade.pace.pace import Pace
from lade.pace.roofline import measured, roofline_of
from lade.pace.shared import SharedCost
from lade.static.buckets import NODES as NODES_OF_STEPS
from lade.static.buckets import rows_bucket
from lade.static.graphs import Graphs
from lade.static.inputs import StepRow
from lade.static.rounds.drafts import DeviceDrafts
from lade.static.shelf import shapes_of
from lade.static.slots import StaticSlots
from lade.static.step import StaticStep
from lade.static.target import StaticTarget
from lade.target.masks import layer_kinds
from lade.target.model import HFTarget
from lade.target.probe import empty_cache

NODES = (1, 64)  # of the steps that are timed
ROUNDS = 20  # steps of each
PLAIN, TREES = lade.LookaheadConfig(mode="auto", budget=1), lade.LookaheadConfig(mode="auto")


@dataclass
class Run:
    """The parts of a run, and the time that is left for them.

    Attributes:
        until: when no further part begins, by `time.monotonic`.
        output: written after each part, and after each way of `rates`, so that a run that is cut short leaves what it
            has found.
        found: results by part; one with the key "error" or "skipped" has no others.
    """

    model: Any
    prompts: list[list[int]]
    new_tokens: int
    contexts: Sequence[int]
    batch: int
    until: float
    output: Path | None = None
    found: dict[str, Any] = field(default_factory=dict)

    def part(self, name: str, work: Callable[[], Any]) -> None:
        began = time.monotonic()
        if began > self.until:
            self.found[name] = {"skipped": "no time was left"}
            return
        try:
            self.found[name] = work()
        except Exception as error:  # noqa: BLE001 - the other parts go on
            self.found[name] = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
        self.found.setdefault("seconds", {})[name] = round(time.monotonic() - began, 2)
        self.save()

    def save(self) -> None:
        if self.output is not None:
            put_in_place(self.output, json.dumps(self.found, indent=2).encode())

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    def wait(self) -> float:
        """The time, once the device has done its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def speeds(run: Run, small: bool) -> dict[str, float]:
    """Of the device, and what they bound: milliseconds in which all weights are read."""
    size = {"copied": 1 << 20, "side": 64} if small else {}
    found = measured(run.device, run.model.dtype, **size)
    return asdict(found) | {"weights_ms": 1e3 * roofline_of(run.model, found).seconds(0)}


def steps(run: Run, contexts: Sequence[int], fused: bool = False, kernel: Any = None) -> list[dict[str, Any]]:
    """Static steps of a few sizes: their time on the device and on the host, and whether they are captured.

    Args:
        fused: compile them first.
        kernel: computes attention.
    """
    found = []
    for context in contexts:
        graphs = graphs_for(run.model, 1, context + max(NODES), kernel, fused)
        for nodes in NODES:
            row = StepRow(0, tree(nodes), context)
            graphs.run([row])  # captures
            device, host, whole = zip(*(timed_step(run, graphs, row) for _ in range(ROUNDS)), strict=True)
            found.append(
                {
                    "context": context, "nodes": nodes, "captured": graphs.captures,
                    "device_ms": median(device), "host_ms": median(host), "whole_ms": median(whole),
                }
            )  # fmt: skip
    return found


def timed_step(run: Run, graphs: Graphs, row: StepRow) -> tuple[float, float, float]:
    """Milliseconds of the device from its first kernel to its last, of the host until the step is launched, and of
    both until the host has read the output."""
    began, events = run.wait(), []
    if run.device.type == "cuda":
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
    output, _ = graphs.run([row])
    launched = time.perf_counter()
    if events:
        events[1].record()
    graphs.back(output)
    whole = 1e3 * (run.wait() - began)
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


def synchronisations(run: Run) -> dict[str, bool]:
    """Whether a captured step is launched without a wait of the host, which CUDA's debug mode would turn into an
    error."""
    graphs = graphs_for(run.model, 1, 256)
    graphs.run([StepRow(0, tree(8), 16)])
    if run.device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        graphs.run([StepRow(0, tree(8), 16)])
    finally:
        if run.device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    return {"none": True}


@torch.no_grad()
def static_texts(
    run: Run, prompts: Sequence[Sequence[int]], config: lade.LookaheadConfig, kernel: Any = None, device: bool = False
) -> list[list[int]]:
    """The new tokens of prompts that are decoded side by side in static steps.

    Args:
        device: whether it drafts in all steps, without a warm table.
    """
    longest = max(map(len, prompts)) + run.new_tokens + NODES_OF_STEPS[-1]
    whole = run.model.config.get_text_config(decoder=True)
    eager = HFTarget(run.model, empty_cache(run.model), layer_kinds(whole), position_limit(whole), Clock())
    target = StaticTarget(eager, graphs_for(run.model, len(prompts), longest, kernel))
    settings = config.settled()
    limit = budget_of(run.model, settings)
    costs = SharedCost(StepCost(policy=policy_for(run.model)), lambda logs: None)  # not those of other forwards
    pace = Pace(costs, limit, sharing=Bucketed(NODES_OF_STEPS, limit)) if limit > 1 else None
    requests = [Request(0, list(prompt), len(prompt), run.new_tokens) for prompt in prompts]
    rounds = DeviceDrafts(target, limit, None, None, None) if device else None
    drafter = drafter_for(run.model, settings, packed=True, pace=pace)
    loop = DecodeLoop(target, drafter, len(prompts), rounds=rounds)
    for request in requests:
        request.emission = AtOnce([request], Stream(None, [request], 0), None, HostRule(frozenset()), None)
        request.inverse_temperature = GREEDY_INVERSE_TEMPERATURE
        loop.submit(request)
    while loop.step():
        pass
    return [request.tokens[request.prompt_length :] for request in requests]


def generated(method: str) -> Callable[..., list[list[int]]]:
    """A way to decode that `lade bench` has, too."""
    decode = METHODS[method].factory(MethodOptions())

    def texts(run: Run, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        ids = torch.tensor(prompts, device=run.device)
        length = {"max_new_tokens": run.new_tokens, "min_new_tokens": run.new_tokens}
        found = decode(
            run.model, input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, eos_token_id=None, **length
        )
        return found[:, ids.shape[1] :].tolist()

    return texts


WAYS: dict[str, Callable[..., list[list[int]]]] = {
    "plain": generated("plain"),
    "static": generated("static"),
    "prompt_lookup": generated("prompt_lookup"),
    "auto": generated("auto"),
    "static step, one token": lambda run, prompts: static_texts(run, prompts, PLAIN),
    "static step, auto": lambda run, prompts: static_texts(run, prompts, TREES),
    "static step, drafts of the device": lambda run, prompts: static_texts(run, prompts, TREES, device=True),
}


ON_CUDA: dict[str, Callable[..., list[list[int]]]] = {
    "static step, one token, kernel": lambda run, prompts: static_texts(run, prompts, PLAIN, attend),
    "static step, auto, kernel": lambda run, prompts: static_texts(run, prompts, TREES, attend),
    "static step, drafts of the device, kernel": lambda run, prompts: static_texts(run, prompts, TREES, attend, True),
}


def rates(run: Run, rows: int, part: str) -> dict[str, Any]:
    """Tokens per second of each way, and how many tokens are those of plain decoding before the first other one."""
    ways = {name: way for name, way in WAYS.items() if rows == 1 or name != "prompt_lookup"}
    ways |= ON_CUDA if run.device.type == "cuda" else {}
    found: dict[str, Any] = {name: {"tokens_per_second": [], "alike": [], "error": None} for name in ways}
    run.found[part] = found
    for number, prompts in enumerate(batches(run.prompts, rows)):
        texts: dict[str, list[list[int]]] = {}
        for name, way in ways.items():
            if found[name]["error"] is not None or time.monotonic() > run.until:
                continue
            try:
                if not number:
                    way(run, prompts)  # compiles, captures, measures
                began = run.wait()
                texts[name] = way(run, prompts)
                found[name]["tokens_per_second"].append(rows * run.new_tokens / (run.wait() - began))
                found[name]["alike"].append(alike(texts[name], texts["plain"]))
            except Exception as error:  # noqa: BLE001 - the other ways go on
                found[name]["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            run.save()
        if "plain" in texts:
            found.setdefault("repetition", []).append([repetition(text, 4) for text in texts["plain"]])
    return found


def batches(prompts: Sequence[list[int]], rows: int) -> Iterator[list[list[int]]]:
    """Prompts in batches, over again where there are too few."""
    several = itertools.cycle(prompts)
    for _ in range(max(1, len(prompts) // rows)):
        yield list(itertools.islice(several, rows))


def alike(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> int:
    """Tokens of all rows before the first that differs."""
    return sum(
        next((index for index, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]), len(one))
        for one, other in zip(ours, theirs, strict=True)
    )


def memory(run: Run) -> dict[str, int] | None:
    """The most bytes that were allocated, and those of the weights."""
    if run.device.type != "cuda":
        return None
    weights = sum(parameter.nbytes for parameter in run.model.parameters())
    return {"most": torch.cuda.max_memory_allocated(run.device), "weights": weights}


def prompts_of(tokenizer: Any, count: int, tokens: int) -> list[list[int]]:
    """Openings of stories one after another, each prompt from another one on."""
    openings = [prompt.text for prompt in SUITE.load()]
    found = []
    for number in range(count):
        text, several = list[int](), itertools.cycle(openings[number:] + openings[:number])
        while len(text) < tokens:
            text += tokenizer.encode(next(several), add_special_tokens=False)
        found.append(text[:tokens])
    return found


def measure(run: Run, small: bool) -> dict[str, Any]:
    run.part("speeds", lambda: speeds(run, small))
    run.part("steps", lambda: steps(run, run.contexts))
    if run.device.type == "cuda":
        run.part("steps with the kernel", lambda: steps(run, run.contexts, kernel=attend))
    run.part("synchronisations", lambda: synchronisations(run))
    for part, rows in (("rates", 1), (f"rates of {run.batch} rows", run.batch)):
        run.part(part, functools.partial(rates, run, rows, part))
    run.part("memory", lambda: memory(run))
    if not small:  # takes a compiler and minutes
        run.part("fused steps", lambda: steps(run, run.contexts[:1], fused=True))
    return run.found


def _contexts(ctx: click.Context, param: click.Parameter, value: str) -> list[int]:
    try:
        return [int(part) for part in value.split(",")]
    except ValueError:
        raise click.BadParameter(f"must be integers, separated by commas, got {value!r}") from None


@click.command()
@click.argument("model")
@click.option("--shape", type=click.Choice(list(SHAPES)), help="Widen the model to this size, on the device.")
@click.option("--device", default="cuda" if torch.cuda.is_available() else "cpu", show_default=True)
@click.option("--dtype", default="bfloat16", show_default=True)
@click.option("--prompts", default=4, show_default=True, type=click.IntRange(min=1), help="How many.")
@click.option("--prompt-tokens", default=512, show_default=True, type=click.IntRange(min=1))
@click.option("--new-tokens", default=256, show_default=True, type=click.IntRange(min=1))
@click.option("--contexts", default="512,8192", show_default=True, callback=_contexts, help="Of the steps.")
@click.option("--batch", default=8, show_default=True, type=click.IntRange(min=2))
@click.option("--seconds", default=480, show_default=True, help="After which no further part begins.")
@click.option("--small", is_flag=True, help="Measure the device on small buffers, for a dry run.")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON object alone.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="Written after each part, should the run be cut."
)
def main(
    model: str,
    shape: str | None,
    device: str,
    dtype: str,
    prompts: int,
    prompt_tokens: int,
    new_tokens: int,
    contexts: list[int],
    batch: int,
    seconds: int,
    small: bool,
    as_json: bool,
    output: Path | None,
) -> None:
    """Measure MODEL, a name or a folder, on an accelerator."""
    until = time.monotonic() + seconds
    loaded, tokenizer = load(model, dtype=dtype, device=device)
    if shape is not None:
        positions = max([*contexts, prompt_tokens + new_tokens]) + 512
        own = own_sizes(loaded)
        sizes = {name: max(size, own[name]) for name, size in SHAPES[shape].items()}  # the vocabulary may be larger
        loaded = widen(loaded, **sizes, max_position_embeddings=positions)
    texts = prompts_of(tokenizer, prompts, prompt_tokens)
    run = Run(loaded, texts, new_tokens, contexts, batch, until, output)
    given = {"model": model, "shape": shape, "dtype": dtype, "prompt_tokens": prompt_tokens, "new_tokens": new_tokens}
    found = {"machine": describe(loaded.device), **given, **measure(run, small)}
    if not as_json:
        click.echo(f"{sum(found['seconds'].values()):.0f} s of {seconds}", err=True)
    click.echo(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
