"""Peak memory of a call of `generate`, with lade over without, at 2,048 tokens of prompt and answer.

Every measurement is a process of its own: it loads a model of random weights, decodes a batch of random prompts, and
reports the process's peak. Plain decoding and lade run in turn. Needs no data and no network:
`python benchmarks/memory.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from statistics import median

import click
import torch
from never_slower import POSITIONS, SETTINGS, model_of

import lade
from lade.applications.bench.machine import available_cores, describe
from lade.applications.bench.memory import peak, reset_peak

SHAPES = {setting.rpartition("-")[0]: setting for setting in SETTINGS if setting.endswith("-1")}


@dataclass(frozen=True)
class Job:
    """One measurement."""

    shape: str
    dtype: str
    batch: int
    new_tokens: int
    threads: int
    drafts: bool


def peak_of(job: Job) -> int:
    """Bytes, in a process of its own."""
    command = [sys.executable, __file__, "--job", json.dumps(asdict(job))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise click.ClickException((done.stderr.strip().splitlines() or ["no message"])[-1])
    return int(done.stdout.splitlines()[-1])


def run(job: Job) -> int:
    """The peak of this process while it decodes, the model included."""
    torch.set_num_threads(job.threads)
    model = model_of(SETTINGS[SHAPES[job.shape]], getattr(torch, job.dtype), seed=0)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (job.batch, POSITIONS - job.new_tokens), generator=generator)
    reset_peak(model.device)
    with lade.lookahead(model) if job.drafts else nullcontext():
        text = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=job.new_tokens, do_sample=False, use_cache=True
        )
    assert text.shape[1] == POSITIONS
    stats = lade.last_stats()
    if job.drafts and (stats is None or stats.fallback is not None):
        raise click.ClickException("lade decoded plainly")
    return peak(model.device)


@click.command()
@click.option("--shape", default="130M-32000", show_default=True, type=click.Choice(tuple(SHAPES)))
@click.option("--dtype", default="bfloat16", show_default=True, type=click.Choice(("bfloat16", "float32")))
@click.option("--batches", default=(1, 8), show_default=True, multiple=True, type=click.IntRange(min=1))
@click.option("--new-tokens", default=64, show_default=True, type=click.IntRange(min=1, max=POSITIONS - 1))
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(min=1), help="The median counts.")
@click.option("--threads", default=available_cores(), type=click.IntRange(min=1), help="[default: all cores]")
@click.option("--job", hidden=True)
def main(
    shape: str, dtype: str, batches: tuple[int, ...], new_tokens: int, repeats: int, threads: int, job: str | None
) -> None:
    """Measure the peak memory of lade over plain decoding's."""
    if job is not None:
        click.echo(run(Job(**json.loads(job))))
        return
    click.echo(json.dumps(describe(torch.device("cpu"))))
    for batch in batches:
        found: dict[bool, list[int]] = {False: [], True: []}
        for _ in range(repeats):
            for drafts, peaks in found.items():
                peaks.append(peak_of(Job(shape, dtype, batch, new_tokens, threads, drafts)))
        plain, ours = median(found[False]), median(found[True])
        click.echo(f"{shape} batch {batch}: plain {plain / 1e6:.0f} MB, lade {ours / 1e6:.0f} MB, {ours / plain:.3f}x")


if __name__ == "__main__":
    main()
