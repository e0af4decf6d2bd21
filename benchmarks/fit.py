"""Tokens per step, log loss and the likeliest priors of the sources' weights, on prompts of the half to tune on.

The texts are recorded once (`replay`) and replayed cold and with the warm table, with a pool that is new for each text
or kept over all of them. Priors are printed by stage, one per bucket, as in `lade.memory.stages`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from halves import TUNE, chosen
from replay import Count, Recorder, Recording, load, replay, save
from weights import Shares, likeliest, log_loss

import lade
from lade.applications.bench.conversation import Conversation, Style
from lade.applications.options import MODEL
from lade.base.compiled import viewed
from lade.config.settings import FAMILIES
from lade.core.request import Request, Verdict
from lade.drafters.blend import BlendDrafter
from lade.memory.backoff import backoff
from lade.memory.evidence import SCRATCH_FLOATS, SCRATCH_INTS, look_up, predicted
from lade.memory.mixture import CALIBRATION
from lade.memory.pools import fresh_pool
from lade.memory.row import DEPTH, NODES, WIDTH, Row
from lade.memory.stages import DEPTHS, STAGES, depth_bucket
from lade.models import load as load_model

BUDGETS = 16, 32, 64
POOLS = {"new": False, "kept": True}
ROUNDS = 2  # replays that fill recordings
POOLED = 20.0  # observations that the mean of a stage counts for
PRIORS = [stage.priors * DEPTHS for stage in STAGES]
MODES = {"cold": tuple(name for name in FAMILIES if name != "warm"), "warm": FAMILIES}

Texts = list[Sequence[Shares]]


def recorded(model: Any, tokenizer: Any, table: Any, number: int, tokens: int) -> list[Recording]:
    """The answers to `number` prompts of each category."""
    recorder, found = Recorder(model, tokens), []
    prompts = [(group, prompt) for group, some in chosen(TUNE, number).items() for prompt in some]
    with click.progressbar(prompts, label="texts") as bar:
        for group, prompt in bar:
            found.append(recorder.record(group, Conversation(Style(tokenizer)).ask(prompt.text)))
    for _ in range(ROUNDS):
        for mode, kept, budget in product(MODES, POOLS.values(), BUDGETS):
            replayed(found, mode, kept, budget, table)
        with click.progressbar(found, label="predictions") as bar:
            for recording in bar:
                recorder.fill(recording)
    return found


def replayed(recordings: Sequence[Recording], mode: str, kept: bool, budget: int, table: Any) -> tuple[Count, Texts]:
    """What the replays of all texts count, and what the weights learned from in each; in a kept pool, in all."""
    count, texts, pool = Count(), Texts(), fresh_pool()
    settings = lade.LookaheadConfig(sources=MODES[mode]).settled()
    warm = partial(backoff, table) if mode == "warm" else None
    for recording in recordings:
        nodes: list[Shares] = []
        drafter = BlendDrafter(settings, budget, warm, lambda _: pool if kept else fresh_pool())
        replay(recording, drafter, count, seen=partial(observe, nodes))
        texts.append(nodes)
    return count, [[*chain.from_iterable(texts)]] if kept else texts


def observe(nodes: list[Shares], request: Request, verdict: Verdict) -> None:
    """Note what the stages said of the choices after the accepted nodes of the tree."""
    row = viewed(request.state.memory.row())
    tokens, masses = viewed(np.zeros(SCRATCH_INTS, np.int32)), viewed(np.zeros(SCRATCH_FLOATS))
    for number, choice in zip(verdict.path, verdict.tokens, strict=True):
        if number < request.state.size:
            nodes.append([*shares(row, row.ints[NODES] + number * WIDTH, choice, tokens, masses)])


def shares(row: Row, node: int, choice: int, tokens: Any, masses: Any) -> Iterator[tuple[int, int, float]]:
    depth = depth_bucket(row.ints[node + DEPTH])
    look_up(row, node, tokens)
    for number, stage in enumerate(STAGES):
        offered, bucket = predicted(row, node, number, tokens, masses)
        if offered:
            said = [*tokens[:offered]]
            given = masses[said.index(choice)] if choice in said else 0.0
            yield number, depth * len(stage.priors) + bucket, given


@click.command()
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--model", "name", default="smollm2-135m", show_default=True, callback=MODEL)
@click.option("--dtype", default="bfloat16", show_default=True, type=click.Choice(("bfloat16", "float32")))
@click.option("--n", "number", default=2, show_default=True, type=click.IntRange(min=1), help="Prompts of a category.")
@click.option("--tokens", default=128, show_default=True, type=click.IntRange(min=1), help="New tokens of a prompt.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(min=1))
def main(path: Path, name: str, dtype: str, number: int, tokens: int, threads: int) -> None:
    """Record texts to PATH where it does not exist, replay them, and print what was found."""
    torch.set_num_threads(threads)
    model, tokenizer = load_model(name, dtype=dtype)
    table = lade.warm_up(model, tokenizer=tokenizer)
    if not path.is_file():
        save(recorded(model, tokenizer, table, number, tokens), path)
    recordings, priors, escape = load(path), PRIORS, CALIBRATION.escape
    every = Texts()
    for mode, (pools, kept), budget in product(MODES, POOLS.items(), BUDGETS):
        count, texts = replayed(recordings, mode, kept, budget, table)
        every += texts
        found = f"S {count.tokens_per_step:.3f}, T {count.mean_forward_tokens:.0f}"
        click.echo(f"{mode}, {pools} {budget}: {found}, loss {log_loss(texts, priors, escape):.4f}")
    fitted = likeliest(every, priors, escape, POOLED)
    before, after = (log_loss(every, each, escape) for each in (priors, fitted))
    click.echo(f"loss of all {before:.4f}, of the likeliest priors {after:.4f}")
    for stage, found in zip(STAGES, fitted, strict=True):
        click.echo(f"{stage.name}: {' '.join(f'{weight:.2f}' for weight in found)}")


if __name__ == "__main__":
    main()
