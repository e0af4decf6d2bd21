"""How many processes share a step, by what steps cost: `python benchmarks/shares.py --ranks 2,4`.

The same prompts over one process and over several that may share them: steps, seconds, how many steps each number of
processes shared, and what they exchanged. Processes on one CPU take each other's time, so one should soon decode alone.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from integerlists import integers_from

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import ranks  # noqa: E402
from stories import PROMPTS  # noqa: E402

import lade  # noqa: E402
from lade.applications.options import MODEL  # noqa: E402
from lade.distributed import target  # noqa: E402
from lade.distributed.steps import StepTimes  # noqa: E402
from lade.distributed.tried import Way  # noqa: E402

PATIENCE = 3600.0  # seconds


def count() -> Counter[str]:
    """Counts, from now on, the steps that each number of processes shares, and exchanges and their bytes."""
    found, begin, gather, packed = Counter[str](), StepTimes.begin, target.SharedTarget._exchange, target.packed

    def counted_begin(steps: StepTimes, tokens: int, *more: Any) -> Way:
        way = begin(steps, tokens, *more)
        found[f"by {way.ranks}"] += 1
        return way

    def counted_exchange(shared: target.SharedTarget, *given: Any) -> Any:
        found["exchanges"] += 1
        found["bytes"] = max(found["bytes"], 4 * shared.layout.total)
        return gather(shared, *given)

    def counted_packed(*given: Any) -> torch.Tensor:
        buffer = packed(*given)
        found["paths"] += 1
        found["path bytes"] += buffer.numel()
        return buffer

    StepTimes.begin = counted_begin  # type: ignore[method-assign]
    target.SharedTarget._exchange = counted_exchange  # type: ignore[method-assign]
    target.packed = counted_packed
    return found


def work(
    name: str, mode: str, workers: int, adapt: bool, prompts: int, new_tokens: int, rank: int
) -> list[dict[str, Any]]:
    """What each prompt took on one rank; the first is decoded twice, and counts once."""
    model, tokenizer = lade.models.load(name, dtype="float32")
    config, counts = lade.LookaheadConfig(mode=mode, workers=workers, adapt=adapt), count()
    found = []
    for prompt in (PROMPTS[0], *PROMPTS[:prompts]):
        inputs, began = tokenizer(prompt, return_tensors="pt"), time.perf_counter()
        counts.clear()
        text = lade.generate(model, **inputs, do_sample=False, max_new_tokens=new_tokens, config=config)
        stats = lade.last_stats()
        assert stats is not None
        seconds = time.perf_counter() - began
        found.append({"text": text.tolist(), "steps": stats.steps, "seconds": seconds, "counts": dict(counts)})
    return found[1:]


def line(runs: list[dict[str, Any]]) -> str:
    counts = sum((Counter(run["counts"]) for run in runs), Counter[str]())
    steps, seconds = sum(run["steps"] for run in runs), sum(run["seconds"] for run in runs)
    told = f"{steps} steps, {1e3 * seconds / steps:.1f} ms each"
    if not counts:
        return told
    shared = ", ".join(f"{number} {name}" for name, number in sorted(counts.items()) if name.startswith("by "))
    largest = max(run["counts"]["bytes"] for run in runs)
    exchanged = f"{counts['exchanges']} exchanges of {largest} bytes"
    return f"{told}; shared {shared}; {exchanged}; {counts['paths']} of paths, {counts['path bytes']} bytes in all"


@click.command()
@click.option("--model", default="stories260K", show_default=True, callback=MODEL)
@click.option(
    "--ranks", "numbers", default="2,4", show_default=True, callback=integers_from(2), help="Numbers of processes."
)
@click.option("--adapt/--no-adapt", default=True, show_default=True, help="Whether fewer processes may share a step.")
@click.option("--prompts", default=4, show_default=True, type=click.IntRange(1, len(PROMPTS)))
@click.option("--new-tokens", default=128, show_default=True, type=click.IntRange(1))
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1))
def main(model: str, numbers: list[int], adapt: bool, prompts: int, new_tokens: int, repeats: int) -> None:
    """Exit status 1 if a text is another than that of one process."""
    torch.set_num_threads(1)
    folder, same = Path(tempfile.mkdtemp(prefix="shares-")), True
    for mode in ("auto", "lookahead"):
        for repeat in range(repeats):
            texts = []
            for number in (1, *numbers):
                run = partial(work, model, mode, number, adapt, prompts, new_tokens)
                found = ranks.run(folder / f"{mode}-{number}-{repeat}", number, run, PATIENCE)
                click.echo(f"{mode}, {number} processes: {line(found[0])}")
                texts += [[each["text"] for each in runs] for runs in found]
            same = same and all(text == texts[0] for text in texts)
    click.echo("all texts are those of one process" if same else "FAILED: texts differ")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
