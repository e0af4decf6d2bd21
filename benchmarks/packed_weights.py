"""Forwards with packed weights (`lade.pack_weights`) over forwards with plain ones, on this machine's CPU.

A model is loaded twice and packed once. Both compute the same tokens in rounds, in turn, without a KV cache; the order
alternates. The figure is the median of plain time over packed time; the logits are compared, too.
`python benchmarks/packed_weights.py smollm2-135m`
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any

import click
import torch

import lade
from lade.applications.bench.machine import available_cores, describe

TOKENS = (1, 2, 4, 8, 16, 32, 64, 256)
WARM_UP = 2  # rounds that are not counted


@dataclass(frozen=True)
class Timing:
    """One number of tokens in one dtype: milliseconds of a forward, and plain time over packed time."""

    dtype: str
    tokens: int
    plain_ms: float
    packed_ms: float
    ratio: float
    low: float
    high: float
    same_bits: bool

    def __str__(self) -> str:
        return (
            f"{self.dtype:9} {self.tokens:4} tokens  plain {self.plain_ms:7.2f} ms  packed {self.packed_ms:7.2f} ms  "
            f"ratio {self.ratio:.2f} (quartiles {self.low:.2f} to {self.high:.2f})  "
            f"{'same bits' if self.same_bits else 'bits differ'}"
        )


@torch.inference_mode()
def measure(plain: Any, packed: Any, dtype: str, tokens: int, rounds: int) -> Timing:
    ids = torch.randint(plain.config.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(tokens))
    taken: list[tuple[float, float]] = []
    same = True
    for number in range(WARM_UP + rounds):
        pair = (plain, packed) if number % 2 else (packed, plain)
        seconds, logits = zip(*[_timed(model, ids) for model in pair], strict=True)
        same = same and torch.equal(*logits)
        taken.append(seconds if number % 2 else seconds[::-1])
    counted = taken[WARM_UP:]
    ratios = [one / other for one, other in counted]
    low, _, high = quantiles(ratios, n=4)
    one, other = (1e3 * median(side) for side in zip(*counted, strict=True))
    return Timing(dtype, tokens, one, other, median(ratios), low, high, same)


def _timed(model: Any, ids: torch.Tensor) -> tuple[float, torch.Tensor]:
    begun = time.perf_counter()
    logits = model(input_ids=ids, use_cache=False).logits
    return time.perf_counter() - begun, logits


@click.command(context_settings={"show_default": True})
@click.argument("model", default="lade-code-8M")
@click.option("--dtypes", default="bfloat16,float32", help="Separated by commas.")
@click.option("--rounds", type=click.IntRange(2), default=15)
@click.option("--threads", type=click.IntRange(1), default=available_cores())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(model: str, dtypes: str, rounds: int, threads: int, as_json: bool) -> None:
    """Measure MODEL, a name or a folder, in each dtype."""
    torch.set_num_threads(threads)
    machine, timings = describe(torch.device("cpu")), list[Timing]()
    if not as_json:
        click.echo(json.dumps(machine))
    for dtype in dtypes.split(","):
        pair = [lade.models.load(model, dtype=dtype, pack=pack)[0] for pack in (False, True)]
        for tokens in TOKENS:
            timings.append(measure(*pair, dtype, tokens, rounds))
            if not as_json:
                click.echo(str(timings[-1]))
    if as_json:
        click.echo(json.dumps({"machine": machine, "rounds": rounds, "timings": [asdict(each) for each in timings]}))


if __name__ == "__main__":
    main()
