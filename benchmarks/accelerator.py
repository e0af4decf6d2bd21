"""All measurements of one accelerator in one run: speeds of the device, static steps, and texts per second.

Needs a folder of weights and nothing else: `python benchmarks/accelerator.py FOLDER --output found.json`. Every part
is on its own: one that fails leaves its error, and one for which no time is left says so. Methods decode the same
prompts in turn, in one process; `ratios.py` compares them. On a CPU it shows that all parts run, and no more.
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
from ratios import over, table_of
from varied_prompts import candidates, varied

import lade
from lade.applications.bench.machine import describe
from lade.applications.bench.methods import METHODS, Decode, MethodOptions
from lade.applications.output import JSON, show
from lade.applications.text_measures import repetition
from lade.applications.widen import SHAPES
from lade.core.tree import Draft, TreeBuilder
from lade.facts.vocabulary import readable
from lade.files.atomic import put_in_place
from lade.kernels.launch import attend
from lade.measure.audit import parting
from lade.models import load
from lade.models.widen import own_sizes, widen
from lade.pace.roofline import measured, roofline_of
from lade.static.buckets import rows_bucket
from lade.static.graphs import Graphs
from lade.static.inputs import StepRow
from lade.static.shelf import shapes_of
from lade.static.slots import StaticSlots
from lade.static.step import StaticStep

NODES = (1, 64)  # of the steps that are timed
ROUNDS = 20  # steps of each
COPIED = 1 << 30  # bytes of the buffer that shows the bandwidth; smaller ones show less of a fast one
STATS = (
    "tokens_per_step", "mean_forward_tokens", "proposed", "accepted", "attention", "not_static", "fallback",
    "prefill_seconds", "model_seconds", "host_seconds", "draft_seconds",
)  # fmt: skip


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
    size = {"copied": 1 << 20, "side": 64} if small else {"copied": COPIED}
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


@dataclass(frozen=True)
class Way:
    """A way to decode.

    Attributes:
        decode: as `model.generate`.
        has_stats: whether `lade.last_stats()` tells of it.
        twice: whether it decodes each prompt once before it is timed, since a prompt may need further sizes of static
            steps, which are captured then; others do so with the first prompt alone.
        batches: whether it decodes several rows.
    """

    decode: Decode
    has_stats: bool = False
    twice: bool = False
    batches: bool = True


def listed(method: str, **more: bool) -> Way:
    """A method of `lade bench`."""
    return Way(METHODS[method].factory(MethodOptions()), **more)


def by_lade(**settings: Any) -> Way:
    """Static steps, on a CPU too."""
    config = lade.LookaheadConfig(mode="auto", static=True, **settings)
    return Way(functools.partial(lade.generate, config=config), has_stats=True, twice=True)


WAYS = {
    "plain": listed("plain"),
    "auto, one token": by_lade(budget=1),
    "auto": by_lade(),
    "auto, drafts of the device": by_lade(device_drafts=True, adapt=False),
    "static": listed("static"),
    "prompt_lookup": listed("prompt_lookup", has_stats=True, batches=False),
}


def rates(run: Run, rows: int, part: str) -> dict[str, Any]:
    """Tokens per second of each way, and how many tokens are those of plain decoding before the first other one.

    Compilation and captures are not timed: each way decodes the first prompt once before, and those of lade, which
    capture when a size is first needed, each prompt. All ways of lade share the graphs that the model keeps.
    """
    ways = {name: way for name, way in WAYS.items() if rows == 1 or way.batches}
    found: dict[str, Any] = {name: {"tokens_per_second": [], "alike": [], "error": None} for name in ways}
    run.found[part] = found | {"repetition": []}
    for number, prompts in enumerate(batches(run.prompts, rows)):
        texts: dict[str, list[list[int]]] = {}
        for name, way in ways.items():
            if found[name]["error"] is not None or time.monotonic() > run.until:
                continue
            try:
                if way.twice or not number:
                    decoded(run, way, prompts)
                texts[name] = timed(run, way, prompts, found[name])
                if "plain" in texts:
                    found[name]["alike"].append(alike(texts[name], texts["plain"]))
                if "plain" in texts and way.twice and rows == 1:
                    found[name].setdefault("partings", []).append(parted(run, prompts[0], texts["plain"], texts[name]))
            except Exception as error:  # noqa: BLE001 - the other ways go on
                found[name]["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            run.save()
        if "plain" in texts:
            run.found[part]["repetition"].append([repetition(text, 4) for text in texts["plain"]])
        run.found[part]["over"] = over(found, run.found[part]["repetition"])
    return dict(run.found[part])


def decoded(run: Run, way: Way, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """The new tokens of prompts of one length."""
    ids = torch.tensor(prompts, device=run.device)
    mask = torch.ones_like(ids)
    found = way.decode(
        run.model, input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=run.new_tokens, pad_token_id=0
    )
    return [list(row) for row in found[:, ids.shape[1] :].tolist()]


def timed(run: Run, way: Way, prompts: Sequence[Sequence[int]], into: dict[str, Any]) -> list[list[int]]:
    """The same; notes tokens per second and statistics."""
    began = run.wait()
    texts = decoded(run, way, prompts)
    into["tokens_per_second"].append(len(prompts) * run.new_tokens / (run.wait() - began))
    if way.has_stats:
        stats = lade.last_stats()
        into.setdefault("stats", []).append({name: getattr(stats, name) for name in STATS})
    return texts


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


def parted(
    run: Run, prompt: Sequence[int], plain: Sequence[Sequence[int]], ours: Sequence[Sequence[int]]
) -> dict[str, Any] | None:
    """Where the texts of one prompt part, and whether rounding explains it (`lade.measure.audit`)."""
    texts = [torch.tensor([*prompt, *text]) for (text,) in (plain, ours)]
    found = parting(run.model, *texts, len(prompt))
    return None if found is None else found.as_dict()


def memory(run: Run) -> dict[str, int] | None:
    """The most bytes that were allocated since the steps were timed, and those of the weights."""
    if run.device.type != "cuda":
        return None
    weights = sum(parameter.nbytes for parameter in run.model.parameters())
    return {"most": torch.cuda.max_memory_allocated(run.device), "weights": weights}


def written(model: Any, new_tokens: int, prompt: Sequence[int]) -> list[int]:
    """The new tokens after a prompt."""
    ids = torch.tensor([prompt], device=model.device)
    mask = torch.ones_like(ids)
    found = lade.generate(model, ids, attention_mask=mask, do_sample=False, max_new_tokens=new_tokens, pad_token_id=0)
    return list(found[0, len(prompt) :].tolist())


def measure(run: Run, small: bool) -> dict[str, Any]:
    """All parts, the most important ones first."""
    run.part("speeds", lambda: speeds(run, small))
    run.part("steps", lambda: steps(run, run.contexts))
    if run.device.type == "cuda":
        run.part("steps with the kernel", lambda: steps(run, run.contexts, kernel=attend))
    if run.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(run.device)  # steps of a long context have larger slots
    run.part("rates", lambda: rates(run, 1, "rates"))
    run.part("memory", lambda: memory(run))
    batch = f"rates of {run.batch} rows"
    run.part(batch, lambda: rates(run, run.batch, batch))
    run.part("synchronisations", lambda: synchronisations(run))
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
@click.option("--prompts", default=3, show_default=True, type=click.IntRange(min=1), help="How many.")
@click.option("--prompt-tokens", default=512, show_default=True, type=click.IntRange(min=1))
@click.option("--new-tokens", default=128, show_default=True, type=click.IntRange(min=1))
@click.option("--contexts", default="512,8192", show_default=True, callback=_contexts, help="Of the steps.")
@click.option("--batch", default=8, show_default=True, type=click.IntRange(min=2))
@click.option("--seconds", default=480, show_default=True, help="After which no further part begins.")
@click.option("--small", is_flag=True, help="Measure the device on small buffers, for a dry run.")
@JSON
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
    loaded.generation_config.eos_token_id = None  # all texts have all their tokens
    texts = varied(candidates(tokenizer, prompt_tokens), prompts, functools.partial(written, loaded, new_tokens))
    if shape is not None:
        positions = max([*contexts, prompt_tokens + new_tokens]) + 512
        own = own_sizes(loaded)
        wanted = SHAPES[shape] | {"max_position_embeddings": positions}
        loaded = widen(loaded, **{name: max(size, own[name]) for name, size in wanted.items()})
    given = {"model": model, "shape": shape, "dtype": dtype, "prompt_tokens": prompt_tokens, "new_tokens": new_tokens}
    begun = {"machine": describe(loaded.device), **given}
    found = measure(Run(loaded, texts, new_tokens, contexts, batch, until, output, begun), small)
    tables = [table_of(part, value) for part, value in found.items() if isinstance(value, dict) and "over" in value]
    show(*tables, f"{sum(found['seconds'].values()):.0f} s of {seconds}", found=found, as_json=as_json)


if __name__ == "__main__":
    main()
