"""What a forward of several tokens costs over one of one token, in each dtype, on this machine's CPU.

The least CPU time of some rounds, in which all numbers of tokens take turns; no KV cache, so that attention is the
same for all. `python benchmarks/dtypes.py smollm2-135m --threads 1`
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click
import torch
from namelists import names_among
from printing import Report

import lade.models
from lade.applications.bench.machine import available_cores, describe
from lade.applications.options import MODEL
from lade.models.load import DTYPES

TOKENS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Costs:
    """Of one dtype: milliseconds of a forward of one token, and those of each number of tokens over it."""

    dtype: str
    milliseconds: float
    ratios: dict[int, float]

    def __str__(self) -> str:
        ratios = "  ".join(f"{tokens}: {ratio:.2f}" for tokens, ratio in self.ratios.items())
        return f"{self.dtype:9} one token {self.milliseconds:.1f} ms  {ratios}"


def costs_of(name: str, dtype: str, rounds: int) -> Costs:
    """Measured with random tokens."""
    model: Any = lade.models.load(name, dtype=dtype)[0]
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(model.config.vocab_size, (1, tokens), generator=generator) for tokens in TOKENS]
    seconds = [min(each) for each in zip(*[_round(model, texts) for _ in range(rounds)], strict=True)]
    one, *_ = seconds
    return Costs(dtype, 1e3 * one, {tokens: each / one for tokens, each in zip(TOKENS, seconds, strict=True)})


def _round(model: Any, texts: Sequence[torch.Tensor]) -> list[float]:
    found = []
    for text in texts:
        begun = time.process_time()
        with torch.inference_mode():
            model(input_ids=text, use_cache=False)
        found.append(time.process_time() - begun)
    return found


@click.command(context_settings={"show_default": True})
@click.argument("model", callback=MODEL)
@click.option("--dtypes", default="bfloat16,float32", callback=names_among(DTYPES), help="Separated by commas.")
@click.option("--rounds", type=click.IntRange(1), default=7)
@click.option("--threads", type=click.IntRange(1), default=1)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(model: str, dtypes: list[str], rounds: int, threads: int, as_json: bool) -> None:
    """Measure MODEL in each dtype."""
    torch.set_num_threads(min(threads, available_cores()))
    report, found = Report(describe(torch.device("cpu")), as_json), list[Costs]()
    for dtype in dtypes:
        found.append(costs_of(model, dtype, rounds))
        report.line(str(found[-1]))
    report.end(costs=[asdict(each) for each in found])


if __name__ == "__main__":
    main()
