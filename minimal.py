"""The smallest use of lade: `python minimal.py` decodes plainly; with USE_LADE=1 LOAD_LADE=1 it decodes both ways.

Both ways run in turn in one process, so that their times can be compared. The model that ships needs no download.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import click
import torch
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

import lade
from lade.applications.options import DEVICE, DTYPE, MODEL, configure_lade, default_device, load_model

PROMPT = "Once upon a time, there was a little girl named Lily. She loved to play outside with her friends."


@dataclass(frozen=True)
class Run:
    """One call of `generate`: the new token ids and the seconds it took."""

    tokens: list[int]
    seconds: float

    @property
    def speed(self) -> float:
        return len(self.tokens) / self.seconds


@dataclass(frozen=True)
class Job:
    """What is decoded: the same seed gives every run the same random numbers."""

    model: PreTrainedModel
    inputs: BatchEncoding
    seed: int
    settings: dict[str, Any]

    def plain(self) -> Run:
        lade.restore_all()
        return self._timed()

    def lookahead(self) -> Run:
        lade.augment_all()
        return self._timed()

    def _timed(self) -> Run:
        torch.manual_seed(self.seed)
        start = time.perf_counter()
        output = self.model.generate(**self.inputs, **self.settings)
        tokens = output[0, self.inputs["input_ids"].shape[1] :].tolist()  # waits for the device
        return Run(tokens, time.perf_counter() - start)


def measure(ways: Sequence[Callable[[], Run]], repeats: int) -> list[list[Run]]:
    """The runs of each way, taken in turn after a warm-up of each; who goes first alternates."""
    for way in ways:
        way()
    runs: list[list[Run]] = [[] for _ in ways]
    for repeat in range(repeats):
        pairs = list(zip(ways, runs, strict=True))
        for way, kept in pairs if repeat % 2 == 0 else reversed(pairs):
            kept.append(way())
    return runs


def report(runs: list[list[Run]], stats: lade.GenerationStats) -> None:
    plain, ahead = runs
    ratios = [b.speed / a.speed for a, b in zip(plain, ahead, strict=True)]
    if stats.fallback:
        click.echo(f"lookahead did not run: {stats.fallback}")
    click.echo(f"texts identical:  {difference(plain[0].tokens, ahead[0].tokens)}")
    click.echo(f"plain:            {speed(plain)}")
    click.echo(f"lookahead:        {speed(ahead)}")
    click.echo(
        f"ratio:            {median(ratios):.2f}, median of {len(ratios)}: {min(ratios):.2f} to {max(ratios):.2f}"
    )
    click.echo(f"tokens per step:  {stats.tokens_per_step:.2f}, {stats.new_tokens} tokens in {stats.steps} steps")


def speed(runs: list[Run]) -> str:
    return f"{median(run.speed for run in runs):.1f} tokens per second"


def difference(plain: list[int], ahead: list[int]) -> str:
    if plain == ahead:
        return "yes"
    pairs = zip(plain, ahead, strict=False)
    first = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(plain), len(ahead)))
    return f"no, they part at new token {first}"


def encode(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str, new_tokens: int) -> BatchEncoding:
    """The prompt's tensors; an error where prompt and new tokens do not fit into the model's positions."""
    inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
    length = inputs["input_ids"].shape[1]
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and length + new_tokens > limit:
        raise click.BadParameter(
            f"{new_tokens} is too many: the prompt has {length} tokens and the model {limit} positions",
            param_hint="--max-new-tokens",
        )
    return inputs


def sampling(sample: bool, temperature: float, top_k: int, top_p: float) -> dict[str, Any]:
    if sample:
        return {"do_sample": True, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    return {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}


@click.command()
@click.option("--model", callback=MODEL, help="Folder or hub name.  [default: the small story model that ships]")
@click.option("--prompt", default=PROMPT, help="Text to go on from.  [default: the beginning of a story]")
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--sample", is_flag=True, help="Sample; greedy without.")
@click.option("--temperature", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True)
@click.option("--top-k", type=click.IntRange(min=0), default=50, show_default=True, help="0 keeps every token.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option("--level", type=int, default=5, show_default=True, help="N, tokens of an n-gram.")
@click.option("--window-size", type=int, default=7, show_default=True, help="W, columns of the window.")
@click.option("--guess-set-size", type=int, help="G, n-grams per key, -1 for all.  [default: W]")
@click.option("--dtype", type=DTYPE, help="[default: the checkpoint's own]")
@click.option("--device", callback=DEVICE, default=default_device, help="[default: cuda where there is one, else cpu]")
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True, help="Timed runs of each way.")
def main(
    *,
    model: str | None,
    prompt: str,
    max_new_tokens: int,
    seed: int,
    dtype: str | None,
    device: str,
    repeats: int,
    level: int,
    window_size: int,
    guess_set_size: int | None,
    **sampler: Any,
) -> None:
    """Go on from a prompt; with USE_LADE=1 LOAD_LADE=1 both plainly and with lookahead, and compare the two."""
    if not prompt:
        raise click.BadParameter("the prompt is empty: at least one character is needed", param_hint="--prompt")
    configure_lade(LEVEL=level, WINDOW_SIZE=window_size, GUESS_SET_SIZE=guess_set_size)
    network, tokenizer = load_model(model, dtype=dtype, device=device)
    inputs = encode(network, tokenizer, prompt, max_new_tokens)
    job = Job(network, inputs, seed, {"max_new_tokens": max_new_tokens} | sampling(**sampler))
    both = os.environ.get("USE_LADE") == "1" and os.environ.get("LOAD_LADE") == "1"
    runs = measure([job.plain, job.lookahead] if both else [job.plain], repeats)
    click.echo(tokenizer.decode(runs[-1][0].tokens, skip_special_tokens=True) + "\n")
    if both:
        report(runs, lade.log_history()[-1])
    else:
        click.echo(f"plain:            {speed(runs[0])}")


if __name__ == "__main__":
    main()
