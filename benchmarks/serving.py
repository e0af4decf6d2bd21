"""What serving costs: `lade serve` in a process of its own, asked by clients in this one.

Measured in rounds, the variants of each in turn; a figure is the median of the ratios within rounds:
- throughput: tokens/s of 1, 2, 4, 8 and 16 clients with drafts and without, and of plain `generate` with a batch
- random: the same with random weights at temperature 1, where drafts are worth nothing
- gap: the 99th percentile of the gaps between the events of 7 streams, over the median, while a long prompt comes
- prefix: how much sooner the first token of a prompt comes whose first 1,000 tokens were read before
- prediction: tokens per step and speed-up of a right predicted output, and of a wrong one
- corpus: the same with a corpus of the answers, which the client adds, and with one of other answers
- http: the first token and the tokens/s of one client, over the same requests through `lade.Engine` in this process

No answer ends early: the model is served from a copy without an end-of-text token. Exit status 1 if a figure is not
what is asked. Needs no network: `python benchmarks/serving.py`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import torch
from namelists import SUITE, names_among
from never_slower import Workload, model_of
from printing import Report
from serving_client import Client, served
from serving_measures import LEVELS, Measured, Site, gaps, http, prefix, random_weights, throughput
from serving_texts import corpus, prediction

from lade.applications.bench.machine import available_cores, describe
from lade.applications.bench.promptsets import from_suites
from lade.applications.options import MODEL
from lade.models import load
from lade.models.load import model_source

MEASUREMENTS: dict[str, Callable[[Site], Measured]] = {
    "throughput": throughput,
    "random": random_weights,
    "gap": gaps,
    "prefix": prefix,
    "prediction": prediction,
    "corpus": corpus,
    "http": http,
}
BATCHING = {"smollm2-135m": 2.8}  # asked of 8 clients over 1; of other models:
OTHER_BATCHING = 2.6
CONFIGURATIONS = ("config.json", "generation_config.json")
END = "eos_token_id"


def endless(source: Path, folder: Path) -> str:
    """A copy of a model whose texts end at their length only; its weights are links."""
    folder.mkdir()
    for file in source.iterdir():
        if file.name in CONFIGURATIONS:
            found = json.loads(file.read_text())
            (folder / file.name).write_text(json.dumps(found | {END: None}))
        else:
            (folder / file.name).symlink_to(file.resolve())
    return str(folder)


def random_folder(tokenizer: Any, vocabulary: int, dtype: str, folder: Path) -> str:
    """A model of the shape of lade-code-8M with random weights."""
    model_of(Workload("code", vocabulary, 1.0), getattr(torch, dtype), seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@contextmanager
def site_of(
    name: str, dtype: str, threads: int, suite: str, tokens: int, rounds: int, each: int, warm: bool
) -> Iterator[Site]:
    with ExitStack() as open_, tempfile.TemporaryDirectory() as root:
        folder = endless(Path(model_source(name)), Path(root) / "endless")
        model, tokenizer = load(folder, dtype=dtype, pack=None)  # as the server does
        options = ["--dtype", dtype, "--threads", str(threads), "--max-batch", str(max(LEVELS))]
        running: dict[tuple[str, ...], Client] = {}

        def server(*more: str, of: str = folder) -> Client:
            if (of, *more) not in running:
                own = ["--warm"] if warm and of == folder else []
                running[of, *more] = open_.enter_context(served(of, *options, *own, *more))
            return running[of, *more]

        def random() -> Client:
            vocabulary = model.config.get_text_config().vocab_size
            return server(of=random_folder(tokenizer, vocabulary, dtype, Path(root) / "random"))

        texts = [prompt.text for prompt in from_suites(suite, None, 0, execute=False)[0].prompts]
        yield Site(server, random, model, tokenizer, texts, tokens, rounds, BATCHING.get(name, OTHER_BATCHING), each)


@click.command()
@click.option("--only", default=",".join(MEASUREMENTS), show_default=True, callback=names_among(MEASUREMENTS))
@click.option(
    "--model",
    "name",
    default="lade-code-8M",
    show_default=True,
    callback=MODEL,
    help="A model that ships or was pulled, or a folder.",
)
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(("bfloat16", "float32")))
@click.option("--suite", default="human_eval", show_default=True, type=SUITE, help="Prompts, as of `lade bench`.")
@click.option("--warm", is_flag=True, help="Serve with the model's warm table.")
@click.option("--tokens", default=96, show_default=True, type=click.IntRange(min=2), help="New tokens of an answer.")
@click.option("--rounds", default=8, show_default=True, type=click.IntRange(min=1))
@click.option("--each", default=1, show_default=True, type=click.IntRange(min=1), help="Requests of a client.")
@click.option("--threads", default=available_cores(), type=click.IntRange(min=1), help="[default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def main(
    only: list[str],
    name: str,
    dtype: str,
    suite: str,
    warm: bool,
    tokens: int,
    rounds: int,
    each: int,
    threads: int,
    as_json: bool,
) -> None:
    """Measure what serving costs; exit status 1 where a figure is not what is asked."""
    torch.set_num_threads(threads)
    report, measured = Report(describe(torch.device("cpu")), as_json), dict[str, Measured]()
    with site_of(name, dtype, threads, suite, tokens, rounds, each, warm) as site:
        for measurement in only:
            measured[measurement] = MEASUREMENTS[measurement](site)
            report.line("\n".join(map(str, measured[measurement].figures)))
    given = {"model": name, "dtype": dtype, "suite": suite, "warm": warm, "tokens": tokens}
    report.end(**given, rounds=rounds, each=each, measurements=_as_json(measured))
    if not all(figure.holds for found in measured.values() for figure in found.figures):
        raise SystemExit(1)


def _as_json(measured: dict[str, Measured]) -> dict[str, Any]:
    return {
        name: {"figures": [asdict(figure) | {"holds": figure.holds} for figure in found.figures], "rows": found.rows}
        for name, found in measured.items()
    }


if __name__ == "__main__":
    main()
