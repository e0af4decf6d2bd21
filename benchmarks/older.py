"""Steps of this checkout against those of an older one (up to 0.1), in two processes that take turns.

    git worktree add ../older 4b3fc83
    python benchmarks/older.py ../older --threads 1

A step is a forward of one random tree per row, the choice of all tokens, and the keys and values kept. Models have
random weights; what the trees guess does not matter. Cases:

- "attention": layers of one tree of 32 nodes whose products are tiny, so that attention with its masks takes the time;
- "ragged": eight rows of 12, 1, 1, 8, 1, 1, 4 and 1 nodes, a model of 8 million parameters;
- "batch 1": one row of 1, 16 and 32 nodes, a model of 130 million parameters.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import click
import torch
from checkouts import ROOT, importable, worker
from printing import Report

from lade.applications.bench.machine import available_cores, describe

REST = 0.02  # seconds before each step: the other process's threads wait busily for some milliseconds behind its own
WARM_UP = 15  # steps that are not counted: ways of attention are chosen by their time in the first ones
ATTENTION = {"hidden_size": 72, "intermediate_size": 64, "vocab_size": 128, "num_hidden_layers": 8, "head_dim": 64}
SMALL = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "vocab_size": 8192,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
}
MEDIUM = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class Case:
    """Trees of `sizes` nodes, one per row, behind `context` tokens."""

    kind: str
    name: str
    config: dict[str, Any]
    context: int
    sizes: tuple[int, ...]


def _heads(queries: int, shared: int) -> dict[str, Any]:
    return ATTENTION | {"num_attention_heads": queries, "num_key_value_heads": shared}


CASES = (
    *(
        Case("attention", f"{queries}/{shared} heads", _heads(queries, shared), context, (32,))
        for queries, shared in ((9, 3), (8, 2))
        for context in (256, 2048, 8192)
    ),
    Case("ragged", "8 rows", SMALL, 256, (12, 1, 1, 8, 1, 1, 4, 1)),
    *(Case("batch 1", f"{nodes} nodes", MEDIUM, 512, (nodes,)) for nodes in (1, 16, 32)),
)


@dataclass(frozen=True)
class Timing:
    """Milliseconds of a step, and the older checkout's time over this one's."""

    case: str
    context: int
    here_ms: float
    older_ms: float
    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return (
            f"{self.case:22} context {self.context:5}  here {self.here_ms:8.2f} ms  older {self.older_ms:8.2f} ms  "
            f"ratio {self.ratio:.2f} (quartiles {self.low:.2f} to {self.high:.2f})"
        )


def measure(checkouts: Sequence[Path], case: Case, rounds: int, dtype: str, threads: int) -> Timing:
    """Both checkouts' steps in turn, on the same trees."""
    taken: list[list[float]] = [[], []]
    with contextlib.ExitStack() as stack:
        both = [stack.enter_context(worker("older_worker.py", checkout)) for checkout in checkouts]
        for one in both:
            begin = {"config": case.config | {"max_position_embeddings": 16384}, "context": case.context}
            one.ask(**begin, rows=len(case.sizes), dtype=dtype, threads=threads)
        for number in range(WARM_UP + rounds):
            for which in (0, 1) if number % 2 else (1, 0):
                time.sleep(REST)
                milliseconds = both[which].ask(sizes=case.sizes, seed=number)
                if number >= WARM_UP:
                    taken[which].append(milliseconds)
    ratios = [older / here for here, older in zip(*taken, strict=True)]
    low, _, high = quantiles(ratios, n=4)
    name = f"{case.kind}, {case.name}"
    return Timing(name, case.context, median(taken[0]), median(taken[1]), median(ratios), low, high)


@click.command()
@click.argument("checkout", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--only", multiple=True, type=click.Choice(sorted({case.kind for case in CASES})), help="[default: all]")
@click.option("--rounds", default=40, show_default=True, type=click.IntRange(min=2))
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(("bfloat16", "float32")))
@click.option("--threads", default=available_cores(), type=click.IntRange(min=1), help="[default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def main(checkout: Path, only: tuple[str, ...], rounds: int, dtype: str, threads: int, as_json: bool) -> None:
    """Time steps of this checkout against those of CHECKOUT."""
    report, timings = Report(describe(torch.device("cpu")), as_json), list[Timing]()
    for case in CASES:
        if not only or case.kind in only:
            with importable(checkout.resolve()) as older:
                timings.append(measure([ROOT, older], case, rounds, dtype, threads))
            report.line(str(timings[-1]))
    report.end(dtype=dtype, rounds=rounds, threads=threads, timings=[asdict(each) for each in timings])


if __name__ == "__main__":
    main()
