"""The smallest use of lade: `python minimal.py` runs plain decoding; with USE_LADE=1 LOAD_LADE=1 also lookahead.

The two alternate in one process, so that their times can be compared. The models that ship need no download.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

import lade
from lade.applications.exits import Command, switch
from lade.applications.options import (
    MODEL,
    FiniteRange,
    configure_lade,
    device_option,
    dtype_option,
    flash_option,
    load_model,
    pack_option,
    window_options,
)
from lade.applications.workers import join_run
from lade.base.coldest import COLDEST
from lade.measure.audit import parting
from lade.models.pretrained.figures import repeated_share
from lade.models.shipped import TARGET, prompt_for

WIDE = 120  # columns of a table without a terminal
SWITCHES = ("USE_LADE", "LOAD_LADE")  # environment variables
COMPARE = f"with {'=1 and '.join(SWITCHES)}=1 both methods run and are compared"


@dataclass(frozen=True)
class TimedCall:
    """One call of `generate`: the new token ids and the seconds it took."""

    tokens: list[int]
    seconds: float

    @property
    def speed(self) -> float:
        return len(self.tokens) / self.seconds


@dataclass(frozen=True)
class Job:
    """What is decoded; every run uses the same seed."""

    model: PreTrainedModel
    inputs: BatchEncoding
    seed: int
    settings: dict[str, Any]
    drafting: dict[str, Any] = field(default_factory=dict)  # for config_lade

    def plain(self) -> TimedCall:
        lade.restore_all()
        return self._timed()

    def lookahead(self) -> TimedCall:
        lade.augment_all()
        lade.config_lade(**self.drafting)
        return self._timed()

    def _timed(self) -> TimedCall:
        torch.manual_seed(self.seed)
        start = time.perf_counter()
        output = self.model.generate(**self.inputs, **self.settings)
        tokens = output[0, self.inputs["input_ids"].shape[1] :].tolist()  # waits for the device
        return TimedCall(tokens, time.perf_counter() - start)


def measure(ways: Sequence[Callable[[], TimedCall]], repeats: int) -> list[list[TimedCall]]:
    """The runs of each way, after a warm-up of each; the order alternates."""
    for way in ways:
        way()
    runs: list[list[TimedCall]] = [[] for _ in ways]
    for repeat in range(repeats):
        pairs = list(zip(ways, runs, strict=True))
        for way, kept in pairs if repeat % 2 == 0 else reversed(pairs):
            kept.append(way())
    return runs


def show(texts: dict[str, str]) -> None:
    """Print the texts side by side, as wide as the terminal, or `WIDE`."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDE
    table = Table(*texts)
    table.add_row(*(Text(text) for text in texts.values()))
    console.print(table)


def report(job: Job, runs: list[list[TimedCall]], stats: lade.GenerationStats) -> None:
    plain, ahead = runs
    ratios = [b.speed / a.speed for a, b in zip(plain, ahead, strict=True)]
    if stats.fallback:
        click.echo(f"lookahead did not run: {stats.fallback}")
    click.echo(f"texts identical:  {difference(job, plain[0], ahead[0])}")
    click.echo(f"plain:            {speed(plain)}")
    click.echo(f"lookahead:        {speed(ahead)}")
    click.echo(
        f"ratio:            {median(ratios):.2f}, median of {len(ratios)}: {min(ratios):.2f} to {max(ratios):.2f}"
    )
    click.echo(f"tokens per step:  {stats.tokens_per_step:.2f}, {stats.new_tokens} tokens in {stats.steps} steps")
    click.echo(f"repetition:       {repeated_share(ahead[0].tokens):.0%} of the 4-grams occur earlier in the text")


def speed(runs: list[TimedCall]) -> str:
    return f"{median(run.speed for run in runs):.1f} tokens per second"


def difference(job: Job, plain: TimedCall, ahead: TimedCall) -> str:
    """Greedy texts in half precision may differ where the two best tokens are nearly tied."""
    if plain.tokens == ahead.tokens:
        return "yes"
    pairs = zip(plain.tokens, ahead.tokens, strict=False)
    shorter = min(len(plain.tokens), len(ahead.tokens))
    first = next((at for at, (a, b) in enumerate(pairs) if a != b), shorter)
    where = f"no, they differ from new token {first} on"
    if job.settings["do_sample"] or first == shorter:
        return where
    prompt = job.inputs["input_ids"][0].tolist()
    one, other = (torch.tensor(prompt + run.tokens) for run in (plain, ahead))
    found = parting(job.model, one, other, len(prompt))
    return f"{where}, {'a near-tie' if found and found.explained else 'and rounding does not explain it'}"


def encode(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str, new_tokens: int) -> BatchEncoding:
    """The prompt's tensors; an error if prompt and new tokens exceed the model's positions."""
    inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
    length = inputs["input_ids"].shape[1]
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and length + new_tokens > limit:
        raise click.BadParameter(
            f"must fit the model's {limit} positions with a prompt of {length} tokens, got {new_tokens}",
            param_hint="--max-new-tokens",
        )
    return inputs


def sampling(sample: bool, temperature: float, top_k: int, top_p: float) -> dict[str, Any]:
    if sample:
        return {"do_sample": True, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    return {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}


@click.command(cls=Command)
@click.option("--model", callback=MODEL, help=f"A model that ships, a folder or a hub name.  [default: {TARGET}]")
@click.option("--prompt", help="Text to continue.  [default: one for the model]")
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--sample", is_flag=True, help="Sample instead of greedy decoding.")
@click.option("--temperature", type=FiniteRange(min=COLDEST), default=1.0, show_default=True)
@click.option("--top-k", type=click.IntRange(min=0), default=50, show_default=True, help="0 keeps every token.")
@click.option("--top-p", type=FiniteRange(0, 1, min_open=True), default=1.0, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@window_options
@dtype_option
@device_option
@pack_option
@click.option(
    "--use-lp", is_flag=True, help="Lookahead parallelism: torchrun's processes share the draft trees (DIST_WORKERS)."
)
@flash_option
@click.option("--repeats", type=click.IntRange(min=1), default=7, show_default=True, help="Timed runs of each method.")
def main(
    *,
    model: str | None,
    prompt: str | None,
    max_new_tokens: int,
    seed: int,
    dtype: str | None,
    device: str,
    pack: bool | None,
    repeats: int,
    mode: str | None,
    level: int | None,
    window_size: int | None,
    guess_set_size: int | None,
    use_lp: bool,
    use_flash: bool,
    **sampler: Any,
) -> None:
    """Continue a prompt; with USE_LADE=1 LOAD_LADE=1 compare plain decoding with lookahead."""
    if prompt == "":
        raise click.BadParameter("must have at least one character, got ''", param_hint="--prompt")
    both = both_asked_for()
    drafting: dict[str, Any] = {
        "MODE": mode,
        "LEVEL": level,
        "WINDOW_SIZE": window_size,
        "GUESS_SET_SIZE": guess_set_size,
        "USE_FLASH": use_flash,
    }
    drafting["DIST_WORKERS"] = join_run() if use_lp else None
    configure_lade(**drafting)
    network, tokenizer = load_model(model, dtype=dtype, device=device, pack=pack)
    prompt = prompt or prompt_for(model)
    inputs = encode(network, tokenizer, prompt, max_new_tokens)
    job = Job(network, inputs, seed, {"max_new_tokens": max_new_tokens} | sampling(**sampler), drafting)
    if both and mode != "lookahead":
        warm_up(network, tokenizer)
    ways = {"plain": job.plain, "lookahead": job.lookahead} if both else {"plain": job.plain}
    runs = measure(list(ways.values()), repeats)
    texts = [tokenizer.decode(way[0].tokens, skip_special_tokens=True).rstrip() for way in runs]
    click.echo(prompt)
    show(dict(zip(ways, texts, strict=True)))
    if both:
        report(job, runs, lade.log_history()[-1])
    else:
        click.echo(f"plain:            {speed(runs[0])}")


def both_asked_for() -> bool:
    """Whether to compare; a line on stderr if one of the two variables is missing."""
    missing = [name for name in SWITCHES if not switch(name)]
    if len(missing) == 1:
        click.echo(f"{missing[0]}=1 is missing: {COMPARE}", err=True)
    return not missing


def warm_up(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Compute the warm table of MODE=auto once per model, with a progress bar, and store it."""
    try:
        lade.warm_up(model, tokenizer=tokenizer)
    except ValueError as error:
        click.echo(f"no warm table: {error}", err=True)


if __name__ == "__main__":
    main()
