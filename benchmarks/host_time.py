"""The host's share of a step: what a step of `lade.Engine` takes outside the model's forward, per row.

Every case decodes as many requests as it has rows, greedily, with trees of so many nodes (`ADAPT=0`). Counted are steps
in which all of them decode, split as `lade bench` splits them: the model's time is that of the forward, and drafting is
part of the host's. A figure is the median over steps, per row. Last, one row of a short context and one of a long one
decode in turn, with a model whose layers read a sliding window alone, so that the forwards of both cost the same.
Needs no network: `python benchmarks/host_time.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
from integerlists import positive_integers
from namelists import SUITE
from printing import Report
from transformers import MistralConfig, MistralForCausalLM

import lade
from lade.applications.bench.machine import available_cores, describe
from lade.applications.bench.promptsets import from_file, from_suites
from lade.applications.options import MODEL
from lade.drafters import compiling

ROWS, NODES = (1, 8, 32), (16, 32, 64)
CONTEXTS = (1_000, 100_000)  # tokens
WINDOW = 256  # tokens that a layer reads where contexts are compared
WARM_UP = 8  # steps that are not counted


@dataclass
class Split:
    """Seconds of the counted steps of one engine."""

    host: list[float] = field(default_factory=list)
    drafting: list[float] = field(default_factory=list)
    model: list[float] = field(default_factory=list)

    def per_row(self, rows: int) -> dict[str, float]:
        """Medians in milliseconds."""
        if not self.host:
            raise click.UsageError(f"MODEL must have positions for more than {WARM_UP} steps after each prompt")
        return {name: round(1e3 * median(seconds) / rows, 4) for name, seconds in asdict(self).items()}


class Steps:
    """An engine that decodes prompts, and the split of its steps.

    Args:
        most: steps that are counted, or fewer where a text ends at the model's last position.
    """

    def __init__(self, model: Any, prompts: Sequence[list[int]], nodes: int, most: int) -> None:
        self.split, self.most = Split(), most
        config = lade.LookaheadConfig(adapt=False, budget=nodes)
        self.engine = lade.Engine(model, config, slots=len(prompts), prefix_bytes=0)
        left = model.config.max_position_embeddings - max(map(len, prompts))
        tokens = min((WARM_UP + most) * nodes, left)
        asked = {"do_sample": False, "eos_token_id": None, "max_new_tokens": tokens}
        every = [torch.tensor([prompt]) for prompt in prompts]
        self.requests = [self.engine.submit(ids, attention_mask=torch.ones_like(ids), **asked) for ids in every]

    def run(self) -> Iterator[None]:
        """The prompts, then step by step, until enough are counted or a request has ended."""
        while not all(request.emitted for request in self.requests):
            self.engine.step()
        yield
        clock, done = self.engine._target.clock, 0
        while len(self.split.host) < self.most and not any(request.finished for request in self.requests):
            drafting, model = clock.draft_seconds, clock.model_seconds
            began = time.perf_counter()
            self.engine.step()
            seconds = time.perf_counter() - began
            done += 1
            if done > WARM_UP:
                self.split.model.append(clock.model_seconds - model)
                self.split.drafting.append(clock.draft_seconds - drafting)
                self.split.host.append(seconds - self.split.model[-1])
            yield


def measure(model: Any, prompts: Sequence[list[int]], rows: int, nodes: int, most: int) -> dict[str, float]:
    """The split of one case."""
    steps = Steps(model, [prompts[row % len(prompts)] for row in range(rows)], nodes, most)
    with steps.engine:
        for _ in steps.run():
            pass
    return steps.split.per_row(rows)


def windowed(model: Any, positions: int) -> Any:
    """The same weights, with layers that read a sliding window."""
    given = model.config.to_dict()
    for name in ("architectures", "model_type", "attention_bias", "mlp_bias", "pretraining_tp"):
        given.pop(name, None)
    config = MistralConfig(**given | {"sliding_window": WINDOW, "max_position_embeddings": positions})
    found = MistralForCausalLM(config).to(model.dtype).eval()
    found.load_state_dict(model.state_dict())
    return found


def compare(
    model: Any, prompts: Sequence[list[int]], contexts: Sequence[int], nodes: int, most: int
) -> list[dict[str, float]]:
    """The split of one row after each context, made of the prompts, over and over; the contexts take turns."""
    text = [token for prompt in prompts for token in prompt]
    text *= -(-max(contexts) // len(text))
    reads = windowed(model, max(contexts) + (WARM_UP + most) * nodes)
    every = [Steps(reads, [text[-context:]], nodes, most) for context in contexts]
    with ExitStack() as stack:
        for steps in every:
            stack.enter_context(steps.engine)
        for _ in zip(*(steps.run() for steps in every), strict=False):
            pass
    return [steps.split.per_row(1) for steps in every]


def any_integers(context: click.Context, option: click.Parameter, value: str) -> list[int]:
    """None of an empty text."""
    return positive_integers(context, option, value) if value else []


@click.command(context_settings={"show_default": True})
@click.argument("model", default="lade-code-8M", callback=MODEL)
@click.option("--suite", default="human_eval", type=SUITE, help="Prompts, as of `lade bench`.")
@click.option("--prompts", type=click.Path(path_type=Path), help="A file with prompts instead, as of `lade bench`.")
@click.option("--rows", default=",".join(map(str, ROWS)), callback=any_integers, help="None: an empty text.")
@click.option("--nodes", default=",".join(map(str, NODES)), callback=positive_integers, help="Separated by commas.")
@click.option("--contexts", default=",".join(map(str, CONTEXTS)), callback=any_integers, help="None: an empty text.")
@click.option("--steps", default=64, type=click.IntRange(min=1), help="That are counted of a case, at most.")
@click.option("--dtype", default="float32", type=click.Choice(("bfloat16", "float32")))
@click.option("--threads", default=available_cores(), type=click.IntRange(min=1))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    model: str,
    suite: str,
    prompts: Path | None,
    rows: list[int],
    nodes: list[int],
    contexts: list[int],
    steps: int,
    dtype: str,
    threads: int,
    as_json: bool,
) -> None:
    """Measure the host's time beside MODEL, a name or a folder."""
    torch.set_num_threads(threads)
    compiling.begin()
    compiling.wait()
    loaded, tokenizer = lade.models.load(model, dtype=dtype)
    chosen = from_suites(suite, None, 0, execute=False) if prompts is None else from_file(prompts, None, 0)
    texts = [tokenizer(prompt.text).input_ids for prompt in chosen[0].prompts]
    report, found = Report(describe(torch.device("cpu")), as_json), list[dict[str, Any]]()

    def note(case: dict[str, int], split: dict[str, float]) -> None:
        found.append(case | split)
        parts = "  ".join(f"{name} {milliseconds:7.3f}" for name, milliseconds in split.items())
        report.line("  ".join(f"{name} {value:>6,}" for name, value in case.items()) + f"  ms per row: {parts}")

    for number in rows:
        for most in nodes:
            note({"rows": number, "nodes": most}, measure(loaded, texts, number, most, steps))
    for most in nodes if contexts else ():
        for context, split in zip(contexts, compare(loaded, texts, contexts, most, steps), strict=True):
            note({"context": context, "nodes": most}, split)
    report.end(model=model, steps=steps, found=found)


if __name__ == "__main__":
    main()
