"""Tokens per step (S) and tokens per forward (T) of a real model's greedy texts, at equal budgets.

`lade pull smollm2-135m` fetches the model; Spec-Bench's prompts are read from LADE_DATA. One JSON line per prompt,
variant and budget, behind a line about machine and versions; the same command goes on where it was interrupted. With
`--older CHECKOUT`, of a revision up to 0.1, `older-cold` and `older-warm` are that checkout's.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from checkouts import importable, worker
from halves import HALVES, chosen, digest
from integerlists import integers_from
from namelists import names_among

import lade
from lade.applications.bench.conversation import Conversation, Style
from lade.applications.bench.machine import available_cores, describe
from lade.applications.bench.suites import SuiteError
from lade.applications.options import MODEL
from lade.config.settings import FAMILIES
from lade.models import load

LOOKUP = 10  # tokens that transformers' prompt lookup drafts where none are given
ALL = "all"

OLDER = {"older-cold": False, "older-warm": True}  # whether with a warm table

Decode = Callable[..., Any]  # (model, inputs and arguments of `generate`) -> text


@dataclass(frozen=True)
class Row:
    """One prompt, decoded once."""

    group: str
    prompt: str
    variant: str
    budget: int
    new_tokens: int
    steps: int
    forward_tokens: int
    warm_table: str | None

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.group, self.prompt, self.variant, self.budget


@dataclass
class Sum:
    """S and T over some rows."""

    new_tokens: int = 0
    steps: int = 0
    forward_tokens: int = 0

    def add(self, row: Row) -> None:
        self.new_tokens += row.new_tokens
        self.steps += row.steps
        self.forward_tokens += row.forward_tokens

    def __str__(self) -> str:
        return f"{self.new_tokens / self.steps:.2f} ({self.forward_tokens / self.steps:.0f})" if self.steps else "-"


def drafting(budget: int, *sources: str, device: bool = False) -> Decode:
    config = lade.LookaheadConfig(
        budget=budget, adapt=False, sources=sources, device_drafts=device, static=device or None
    )
    return partial(lade.generate, config=config)


def of_source(name: str) -> Callable[[int], Decode]:
    return lambda budget: drafting(budget, name)


COLD = tuple(name for name in FAMILIES if name != "warm")
VARIANTS: Mapping[str, Callable[[int], Decode]] = {
    "cold": lambda budget: drafting(budget, *COLD),
    "warm": lambda budget: drafting(budget, *FAMILIES),
    "cold-device": lambda budget: drafting(budget, *COLD, device=True),
    "warm-device": lambda budget: drafting(budget, *FAMILIES, device=True),
    **{f"only-{name}": of_source(name) for name in FAMILIES if name != "reference"},
    "prompt-lookup": lambda budget: partial(lade.prompt_lookup_generate, draft_tokens=budget - 1),
    "prompt-lookup-10": lambda budget: partial(lade.prompt_lookup_generate, draft_tokens=min(LOOKUP, budget - 1)),
}
EVERY = (*VARIANTS, *OLDER)


def run(model: Any, ids: Sequence[int], decode: Decode, new_tokens: int) -> lade.GenerationStats:
    """Decode greedily.

    Raises:
        click.ClickException: lade decoded plainly.
    """
    inputs = torch.tensor([ids])
    decode(model, input_ids=inputs, attention_mask=torch.ones_like(inputs), do_sample=False, max_new_tokens=new_tokens)
    stats = lade.last_stats()
    assert stats is not None
    if stats.fallback is not None:
        raise click.ClickException(f"lade decoded plainly: {stats.fallback}")
    return stats


@contextmanager
def older_process(checkout: Path, model: Any, threads: int) -> Iterator[Callable[..., lade.GenerationStats]]:
    """Gives `run` of a checkout up to 0.1: ids, whether with a warm table, budget, new tokens."""
    dtype = str(model.dtype).removeprefix("torch.")
    with (
        importable(checkout.resolve()) as folder,
        worker("older_texts_worker.py", folder, model.name_or_path, dtype) as process,
    ):

        def decode(ids: Sequence[int], warm: bool, budget: int, tokens: int) -> lade.GenerationStats:
            job = {"ids": list(ids), "warm": warm, "budget": budget, "tokens": tokens, "threads": threads}
            return lade.GenerationStats(rows=1, **process.ask(**job))

        yield decode


def rows_of(path: Path, settings: Mapping[str, object]) -> list[Row]:
    """What an earlier run of these settings wrote; the head of a new file is written."""
    if not path.is_file():
        path.write_text(json.dumps(settings | {"machine": describe(torch.device("cpu"))}) + "\n")
        return []
    lines = path.read_text().split("\n")
    whole = lines[:-1]  # an interrupt may leave a part of a line behind them
    path.write_text("".join(line + "\n" for line in whole))
    found = json.loads(whole[0])
    if any(found.get(name) != value for name, value in settings.items()):
        raise click.ClickException(f"{path} holds a run of other settings: name another file")
    return [Row(**json.loads(line)) for line in whole[1:]]


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Lines of S and T, over all prompts first."""
    sums: dict[tuple[str, int, str], Sum] = defaultdict(Sum)
    groups = list(dict.fromkeys(row.group for row in rows))
    for row in rows:
        for group in (ALL, row.group):
            sums[row.variant, row.budget, group].add(row)
    yield " | ".join(["variant", "T at most", ALL, *groups])
    for variant, budget in dict.fromkeys((row.variant, row.budget) for row in rows):
        cells = [str(sums[variant, budget, group]) for group in (ALL, *groups)]
        yield " | ".join([variant, str(budget), *cells])


@click.command()
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--half", default="report", show_default=True, type=click.Choice(HALVES))
@click.option("--model", "name", default="smollm2-135m", show_default=True, callback=MODEL)
@click.option("--dtype", default="bfloat16", show_default=True, type=click.Choice(("bfloat16", "float32")))
@click.option("--variants", default="cold,warm", show_default=True, callback=names_among(EVERY), help=", ".join(EVERY))
@click.option("--budgets", default="16,32,64", show_default=True, callback=integers_from(2))
@click.option("--n", "number", default=8, show_default=True, type=click.IntRange(min=1), help="Prompts of a category.")
@click.option("--tokens", default=128, show_default=True, type=click.IntRange(min=1), help="New tokens of a prompt.")
@click.option("--older", type=click.Path(exists=True, file_okay=False, path_type=Path), help="A checkout up to 0.1.")
@click.option("--threads", default=available_cores(), type=click.IntRange(min=1), help="[default: all cores]")
def main(
    out: Path,
    half: str,
    name: str,
    dtype: str,
    variants: list[str],
    budgets: list[int],
    number: int,
    tokens: int,
    older: Path | None,
    threads: int,
) -> None:
    """Write S and T of the variants on one half of the prompts to OUT, and print them."""
    torch.set_num_threads(threads)
    if older is None and set(variants) & set(OLDER):
        raise click.UsageError(f"--older must be given for {', '.join(OLDER)}")
    try:
        groups = chosen(half, number)
    except SuiteError as error:
        raise click.ClickException(str(error)) from error
    rows = rows_of(out, {"half": half, "model": name, "dtype": dtype, "tokens": tokens})
    done = {row.key for row in rows}
    model, tokenizer = load(name, dtype=dtype)
    if any(variant in ("warm", "only-warm") for variant in variants):
        lade.warm_up(model, tokenizer=tokenizer)
    prompts = [(group, prompt) for group, found in groups.items() for prompt in found]
    before = nullcontext() if older is None else older_process(older, model, threads)
    with before as run_older, out.open("a") as file, click.progressbar(prompts, label="prompts") as bar:
        for group, prompt in bar:
            ids = Conversation(Style(tokenizer)).ask(prompt.text)
            for key in ((group, digest(prompt), variant, budget) for variant in variants for budget in budgets):
                if key in done:
                    continue
                variant, budget = key[2:]
                if variant in OLDER:
                    stats = run_older(ids, OLDER[variant], budget, tokens)
                else:
                    stats = run(model, ids, VARIANTS[variant](budget), tokens)
                row = Row(*key, stats.new_tokens, stats.steps, stats.forward_tokens, stats.warm_table)
                file.write(json.dumps(asdict(row)) + "\n")
                file.flush()
                rows.append(row)
    for line in table(rows):
        click.echo(line)


if __name__ == "__main__":
    main()
