"""`lade skip-search`: which sub-layers a model should skip for self-speculative drafts.

Knows the terminal and runs the model; the search is `lade.applications.search.skipsearch`'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import lade
from lade.applications.aliases import renamed
from lade.applications.bench.machine import describe
from lade.applications.bench.prompts import read_prompts
from lade.applications.exits import Command, failing, interruptible, usage
from lade.applications.options import (
    MODEL,
    FiniteRange,
    limit_option,
    load_model,
    model_options,
    prompts_option,
    temperature_option,
)
from lade.applications.outputs import check_suffix, make_room, taken
from lade.applications.search.skipsearch import Measure, SkipOutcome, first_sets, open_study, require_optuna, search
from lade.drafters.lengths import LENGTHS
from lade.memory.warm.progress import progress_bar
from lade.target.skipset import SkipSet, write_skip_set

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Drafting:
    """How every trial drafts and generates."""

    tokens: int
    adapt: str
    threshold: float
    max_new_tokens: int
    temperature: float
    seed: int

    def method(self, layers: SkipSet) -> lade.SelfSpeculative:
        return lade.SelfSpeculative(layers, tokens=self.tokens, adapt=self.adapt, threshold=self.threshold)

    @property
    def sampling(self) -> dict[str, Any]:
        if not self.temperature:
            return {"do_sample": False}
        return {"do_sample": True, "temperature": self.temperature, "top_k": 0}


SEED = click.IntRange(0, 2**31 - 1)  # the samplers of Optuna take twice as much, and trials add to it


@click.command("skip-search", cls=Command)
@click.argument("model", callback=MODEL)
@prompts_option
@click.option("--out", required=True, type=click.Path(path_type=Path), help="File for the set found, as JSON.")
@click.option("--trials", default=200, show_default=True, type=click.IntRange(min=1), help="Sets to try.")
@click.option("--max-new-tokens", default=64, show_default=True, type=click.IntRange(min=2))
@limit_option(default=4, show_default=True)
@renamed(
    "--draft-tokens",
    "--tokens",
    name="tokens",
    default=8,
    show_default=True,
    type=click.IntRange(min=1),
    help="Tokens drafted per step, at most.",
)
@renamed(
    "--draft-adapt",
    "--adapt",
    name="adapt",
    default="confidence",
    show_default=True,
    type=click.Choice(list(LENGTHS)),
    help="How the draft length adapts.",
)
@click.option(
    "--threshold",
    default=0.6,
    show_default=True,
    type=FiniteRange(0, 1),
    help="Confidence below which drafting stops.",
)
@temperature_option
@click.option("--seed", default=0, show_default=True, type=SEED)
@click.option("--overwrite", is_flag=True, help="Start again and replace the set.")
@model_options
def command(
    model: str,
    prompts: Path,
    out: Path,
    trials: int,
    limit: int,
    overwrite: bool,
    dtype: str | None,
    device: str,
    quant: str | None,
    threads: int,
    **given: Any,
) -> None:
    """Find the sub-layers that MODEL should skip for self-speculative drafts.

    Trials are kept in a journal beside --out; after Ctrl-C, run the same command again to continue.
    `lade.SelfSpeculative(OUT)` takes the set.
    """
    import torch

    from lade.applications.search.effects import check
    from lade.facts.fingerprint import fingerprint

    drafting, journal = Drafting(**given), out.with_suffix(".journal")
    with failing():
        require_optuna()
    with usage("--prompts"):
        texts = read_prompts(prompts, limit)
    with usage():
        prepare(out, journal, overwrite)
    torch.set_num_threads(threads)
    loaded, tokenizer = load_model(model, dtype=dtype, device=device, quant=quant or None)
    with usage("MODEL"):
        check(loaded)
    ids = [tokenizer(text.text, return_tensors="pt").input_ids.to(loaded.device) for text in texts]
    head = {
        "model": fingerprint(loaded),
        "prompts": [text.text for text in texts],
        "options": given | {"threads": threads},
        "machine": describe(loaded.device)["cpu"],
        "device": describe(loaded.device)["device"],
        **({"quant": quant} if quant else {}),
    }
    with usage():
        study = open_study(journal, head, drafting.seed)
    with interruptible(lambda: f"{journal} holds {len(study.trials)} trials; the same command continues"):
        with progress_bar("trials") as progress:
            outcome = run(study, loaded, ids, drafting, trials, progress)
        tell(outcome, loaded, ids, drafting, out, model)


def prepare(out: Path, journal: Path, overwrite: bool) -> None:
    """Make the folder. ValueError where the set cannot be written, or would replace one."""
    check_suffix("--out", out, [".json"])
    make_room("--out", out)
    if overwrite:
        journal.unlink(missing_ok=True)
    elif journal.exists() and not journal.is_file():  # optuna would block on a pipe
        raise ValueError(f"{journal}: must be a regular file")
    elif out.exists() and not journal.exists():
        raise taken("--out", out)


def run(
    study: Any,
    model: PreTrainedModel,
    prompts: Sequence[Tensor],
    drafting: Drafting,
    trials: int,
    progress: Callable[[int, int], object],
    now: Callable[[], float] = time.perf_counter,
) -> SkipOutcome:
    """Search, starting from the sub-layers with the least effect on the output."""
    from lade.applications.search.effects import effects, sub_layers

    measure, start = measured(model, prompts, drafting, now), []
    if not study.trials:
        texts = [generated(model, ids, drafting) for ids in prompts]  # also the warm-up
        start = first_sets(effects(model, texts))
    return search(study, sub_layers(model), len(prompts), measure, trials, start, progress)


def measured(
    model: PreTrainedModel, prompts: Sequence[Tensor], drafting: Drafting, now: Callable[[], float]
) -> Measure:
    """Measures new tokens and seconds of a call that drafts without some sub-layers."""

    def measure(layers: SkipSet, prompt: int) -> tuple[int, float]:
        ids, began = prompts[prompt], now()
        text = generated(model, ids, drafting, layers)
        return text.shape[1] - ids.shape[1], now() - began

    return measure


def generated(model: PreTrainedModel, ids: Tensor, drafting: Drafting, layers: SkipSet | None = None) -> Tensor:
    """[1, length] prompt and text; plain decoding without `layers`."""
    import torch

    torch.manual_seed(drafting.seed)
    arguments = {"max_new_tokens": drafting.max_new_tokens, **drafting.sampling}
    if layers is None:
        text = model.generate(ids, **arguments)
    else:
        text = lade.generate(model, ids, method=drafting.method(layers), **arguments)
    if text.device.type == "cuda":
        torch.cuda.synchronize(text.device)
    return text


def plain_speed(model: PreTrainedModel, prompts: Sequence[Tensor], drafting: Drafting) -> float:
    tokens, began = 0, time.perf_counter()
    for ids in prompts:
        tokens += generated(model, ids, drafting).shape[1] - ids.shape[1]
    return tokens / (time.perf_counter() - began)


def tell(
    outcome: SkipOutcome, model: PreTrainedModel, prompts: Sequence[Tensor], drafting: Drafting, out: Path, name: str
) -> None:
    """Write the set, and print its speed."""
    plain = plain_speed(model, prompts, drafting)
    figures = {
        "tokens_per_second": outcome.speed,
        "with_nothing_left_out": outcome.nothing,
        "plain_decoding": plain,
        "trials": outcome.trials[0],
        "trials_to_the_end": outcome.trials[1],
    }
    how = asdict(drafting) | {"prompts": len(prompts)}
    write_skip_set(out, outcome.best, {"model": name} | figures | how | {"machine": describe(model.device)})
    best = outcome.best
    click.echo(f"left out: attention {list(best.attention)}, MLP {list(best.mlp)}")
    click.echo(
        f"{outcome.speed:.1f} tokens/s, {outcome.nothing:.1f} with nothing left out, {plain:.1f} plainly "
        f"({outcome.trials[0]} trials, {outcome.trials[1]} of them to the end)"
    )
    click.echo(f"{out}: lade.SelfSpeculative({str(out)!r}) takes it")
