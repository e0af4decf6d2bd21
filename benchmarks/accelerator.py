"""All measurements of one accelerator in one run: speeds of the device, static steps, and texts per second.

Needs a folder of weights and nothing else: `python benchmarks/accelerator.py FOLDER --output found.json`. Every part
is on its own: one that fails leaves its error, and one for which no time is left says so. Methods decode the same
prompts in turn, in one process (`decoding_ways.py`); `ratios.py` compares them. On a CPU it shows that all parts run,
and no more.
"""

from __future__ import annotations

import functools
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import torch
from decoding_ways import continued, rates
from integerlists import positive_integers
from ratios import table_of
from static_steps import COPIED, graphs_for, steps, tree
from timed_parts import Run
from varied_prompts import candidates, varied

import lade
from lade.applications.bench.machine import describe
from lade.applications.options import DTYPE, MODEL, checked, default_device
from lade.applications.output import JSON, show
from lade.applications.widen import SHAPES
from lade.kernels.launch import attend
from lade.models import load
from lade.models.device import as_device
from lade.models.widen import own_sizes, widen
from lade.pace.roofline import measured, roofline_of
from lade.static.inputs import StepRow


def speeds(run: Run, small: bool) -> dict[str, float]:
    """Of the device, and what they bound: milliseconds in which all weights are read."""
    size = {"copied": 1 << 20, "side": 64} if small else {"copied": COPIED}
    found = measured(run.device, run.model.dtype, **size)
    return asdict(found) | {"weights_ms": 1e3 * roofline_of(run.model, found).seconds(0)}


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


def memory(run: Run) -> dict[str, int] | None:
    """The most bytes that were allocated since the steps were timed, and those of the weights."""
    if run.device.type != "cuda":
        return None
    weights = sum(parameter.nbytes for parameter in run.model.parameters())
    return {"most": torch.cuda.max_memory_allocated(run.device), "weights": weights}


def measure(run: Run, small: bool) -> dict[str, Any]:
    """All parts, the most important ones first."""
    run.part("speeds", lambda: speeds(run, small))
    run.part("steps", lambda: steps(run.model, run.contexts))
    if run.device.type == "cuda":
        run.part("steps with the kernel", lambda: steps(run.model, run.contexts, kernel=attend))
        theirs = {"kernel": attend, "multiplies": False}
        run.part("steps with PyTorch's products", lambda: steps(run.model, run.contexts, **theirs))
        torch.cuda.reset_peak_memory_stats(run.device)  # steps of a long context have larger slots
    run.part("rates", lambda: rates(run, 1, "rates"))
    run.part("memory", lambda: memory(run))
    batch = f"rates of {run.batch} rows"
    run.part(batch, lambda: rates(run, run.batch, batch))
    run.part("synchronisations", lambda: synchronisations(run))
    if not small:  # takes a compiler and minutes
        run.part("fused steps", lambda: steps(run.model, run.contexts[:1], fused=True))
    return run.found


@click.command()
@click.argument("model", callback=MODEL)
@click.option("--shape", type=click.Choice(list(SHAPES)), help="Widen the model to this size, on the device.")
@click.option("--device", default=default_device, callback=checked(as_device), help="[default: cuda if available]")
@click.option("--dtype", default="bfloat16", show_default=True, type=DTYPE)
@click.option("--prompts", default=3, show_default=True, type=click.IntRange(min=1), help="How many.")
@click.option("--prompt-tokens", default=512, show_default=True, type=click.IntRange(min=1))
@click.option("--new-tokens", default=128, show_default=True, type=click.IntRange(min=1))
@click.option("--contexts", default="512,8192", show_default=True, callback=positive_integers, help="Of the steps.")
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
    decode = functools.partial(continued, lade.generate, loaded, new_tokens)
    texts = varied(candidates(tokenizer, prompt_tokens), prompts, lambda prompt: decode([prompt])[0])
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
