"""Rows of one engine without drafts, over plain `generate` of a batch of as many, in this process and in turn.

Measured in rounds: each decodes the same prompts by `lade.Engine` and by plain `generate`, padded on the left, and the
order alternates. A figure is the median of the rounds' ratios of time, prompts included. Exit status 1 if one is below
what is asked. Needs no network: `python benchmarks/rows.py`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any

import click
import torch
from namelists import SUITE
from printing import Report

import lade
from lade.applications.bench.machine import available_cores, describe
from lade.applications.bench.promptsets import from_suites
from lade.applications.options import MODEL

LEVELS = (1, 4, 8, 16)  # rows
ASKED = 0.9
WARM_UP = 1  # rounds that are not counted


@dataclass(frozen=True)
class Timing:
    """So many rows: seconds of both ways, and plain time over the engine's."""

    rows: int
    engine: float
    plain: float
    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        verdict = "holds" if self.ratio >= ASKED else "BROKEN"
        return (
            f"{self.rows:3} rows  engine {self.engine:6.2f} s  plain {self.plain:6.2f} s  "
            f"ratio {self.ratio:.2f} (quartiles {self.low:.2f} to {self.high:.2f})  asked >= {ASKED}: {verdict}"
        )


def by_engine(engine: lade.Engine, prompts: Sequence[list[int]], tokens: int, drafts: bool) -> list[list[int]]:
    """The new tokens of each prompt."""
    requests = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        asked = {"attention_mask": torch.ones_like(ids), "do_sample": False, "eos_token_id": None}
        requests.append(engine.submit(ids, max_new_tokens=tokens, drafts=drafts, **asked))
    engine.run()
    return [request.tokens[request.prompt_length :] for request in requests]


def by_generate(model: Any, prompts: Sequence[list[int]], tokens: int) -> list[list[int]]:
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    asked = {"attention_mask": mask, "do_sample": False, "eos_token_id": None}
    found: list[list[int]] = model.generate(ids, max_new_tokens=tokens, **asked)[:, longest:].tolist()
    return found


def measure(
    model: Any, engine: lade.Engine, prompts: Sequence[list[int]], rows: int, tokens: int, rounds: int, drafts: bool
) -> Timing:
    taken: dict[str, list[float]] = {"engine": [], "plain": []}
    for number in range(WARM_UP + rounds):
        chosen = [prompts[(number * rows + row) % len(prompts)] for row in range(rows)]
        for name in ("engine", "plain") if number % 2 else ("plain", "engine"):
            began = time.perf_counter()
            if name == "engine":
                by_engine(engine, chosen, tokens, drafts)
            else:
                by_generate(model, chosen, tokens)
            if number >= WARM_UP:
                taken[name].append(time.perf_counter() - began)
    ratios = [plain / own for own, plain in zip(taken["engine"], taken["plain"], strict=True)]
    low, _, high = quantiles(ratios, n=4)
    return Timing(rows, median(taken["engine"]), median(taken["plain"]), median(ratios), low, high)


@click.command()
@click.argument("model", default="lade-code-8M", callback=MODEL)
@click.option("--suite", default="human_eval", show_default=True, type=SUITE, help="Prompts, as of `lade bench`.")
@click.option("--tokens", default=96, show_default=True, type=click.IntRange(min=1), help="New tokens of each row.")
@click.option("--rounds", default=8, show_default=True, type=click.IntRange(min=2))
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(("bfloat16", "float32")))
@click.option("--drafts", is_flag=True, help="Draft in the engine.")
@click.option("--threads", default=available_cores(), type=click.IntRange(min=1), help="[default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def main(
    model: str, suite: str, tokens: int, rounds: int, dtype: str, drafts: bool, threads: int, as_json: bool
) -> None:
    """Time rows of an engine of MODEL, a name or a folder, against plain batches."""
    torch.set_num_threads(threads)
    loaded, tokenizer = lade.models.load(model, dtype=dtype)
    texts = [prompt.text for prompt in from_suites(suite, None, 0, execute=False)[0].prompts]
    prompts, timings = [tokenizer(text).input_ids for text in texts], list[Timing]()
    report = Report(describe(loaded.device), as_json)
    with lade.Engine(loaded, slots=max(LEVELS)) as engine:
        for rows in LEVELS:
            timings.append(measure(loaded, engine, prompts, rows, tokens, rounds, drafts))
            report.line(str(timings[-1]))
    given = {"model": model, "suite": suite, "tokens": tokens, "rounds": rounds, "dtype": dtype, "drafts": drafts}
    report.end(**given, timings=[asdict(each) for each in timings])
    if not all(timing.ratio >= ASKED for timing in timings):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
