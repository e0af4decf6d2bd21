"""Packed forwards against padded ones: the same trees of several rows, in turn, with equal contexts.

Packed, the nodes of all rows stand behind one another; padded, every row takes as many as the largest. Each case is
timed in rounds; a round is one forward of each way, whose order alternates. The figure is the median of padded time
over packed time. The two ways' logits are compared too. Needs no data and no network: `python benchmarks/packed.py`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any

import click
import torch
from integerlists import positive_integers
from printing import Report
from transformers import PreTrainedModel

from lade.applications.bench.machine import available_cores, describe
from lade.applications.options import MODEL
from lade.core.tree import Draft, TreeBuilder, chain
from lade.models import load
from lade.target.empty import empty_target

CASES = {
    "ragged": (12, 1, 1, 8, 1, 1, 4, 1),
    "six each": (6,) * 8,
    "roots alone": (1,) * 8,
    "one row": (12,),
}
WARM_UP = 3  # rounds that are not counted


@dataclass(frozen=True)
class Timing:
    """One case at one context: milliseconds of a forward, and padded time over packed time."""

    case: str
    context: int
    packed_ms: float
    padded_ms: float
    ratio: float
    low: float
    high: float
    difference: float  # the largest, of logits

    def __str__(self) -> str:
        return (
            f"{self.case:12} context {self.context:5}  "
            f"packed {self.packed_ms:7.2f} ms  padded {self.padded_ms:7.2f} ms  "
            f"ratio {self.ratio:.2f} (quartiles {self.low:.2f} to {self.high:.2f})  "
            f"logits differ by {self.difference:.1e}"
        )


class Way:
    """A model's forwards, packed or padded, with one context in every row."""

    def __init__(self, model: PreTrainedModel, packed: bool, rows: int, context: int) -> None:
        vocabulary = model.config.get_text_config(decoder=True).vocab_size
        self.target = empty_target(model, packed)
        self.slots = range(rows)
        noise = random.Random(0)
        for slot in self.slots:
            self.target.open(slot, context, context + 256)
            tokens = [noise.randrange(vocabulary) for _ in range(context)]
            self.target.forward([slot], [chain(tokens, asked=True)])
            self.target.keep([slot], [range(context)])

    def forward(self, drafts: Sequence[Draft]) -> tuple[float, torch.Tensor]:
        """Seconds until the host has all choices, and the logits of all rows, row by row. Nothing is kept."""
        began = time.perf_counter()
        outputs = self.target.forward(self.slots, drafts)
        outputs.logits.argmax(-1).tolist()
        seconds = time.perf_counter() - began
        self.target.keep(self.slots, [[]] * len(drafts))
        lines = [outputs.lines[row][node] for row, draft in enumerate(drafts) for node in draft.queries]
        return seconds, outputs.logits[lines]


def tree(nodes: int, noise: random.Random, vocabulary: int) -> Draft:
    """A random tree, whose logits are all asked for."""
    builder = TreeBuilder(noise.randrange(vocabulary))
    while len(builder.tokens) < nodes:
        builder.queries.add(builder.add(noise.randrange(len(builder.tokens)), noise.randrange(vocabulary), "made"))
    return builder.build()


@torch.no_grad()
def measure(model: PreTrainedModel, case: str, context: int, rounds: int) -> Timing:
    sizes, noise = CASES[case], random.Random(1)
    ways = {packed: Way(model, packed, len(sizes), context) for packed in (True, False)}
    taken: dict[bool, list[float]] = {True: [], False: []}
    difference = 0.0
    for number in range(WARM_UP + rounds):
        drafts = [tree(nodes, noise, model.config.vocab_size) for nodes in sizes]
        order = (True, False) if number % 2 else (False, True)
        found = {packed: ways[packed].forward(drafts) for packed in order}
        difference = max(difference, float((found[True][1] - found[False][1]).abs().max()))
        for packed in order if number >= WARM_UP else ():
            taken[packed].append(1000 * found[packed][0])
    ratios = [padded / packed for packed, padded in zip(taken[True], taken[False], strict=True)]
    low, _, high = quantiles(ratios, n=4)
    return Timing(case, context, median(taken[True]), median(taken[False]), median(ratios), low, high, difference)


@click.command()
@click.argument("model", default="lade-code-8M", callback=MODEL)
@click.option(
    "--contexts", default="256,1024", show_default=True, callback=positive_integers, help="Tokens before the trees."
)
@click.option("--rounds", default=60, show_default=True, type=click.IntRange(min=2))
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(("bfloat16", "float32")))
@click.option("--threads", default=available_cores(), type=click.IntRange(min=1), help="[default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def main(model: str, contexts: list[int], rounds: int, dtype: str, threads: int, as_json: bool) -> None:
    """Time packed forwards of MODEL, a name or a folder, against padded ones."""
    torch.set_num_threads(threads)
    loaded: Any = load(model, dtype=dtype)[0]
    report, timings = Report(describe(loaded.device), as_json), list[Timing]()
    for context in contexts:
        for case in CASES:
            timings.append(measure(loaded, case, context, rounds))
            report.line(str(timings[-1]))
    report.end(model=model, dtype=dtype, rounds=rounds, timings=[asdict(each) for each in timings])


if __name__ == "__main__":
    main()
