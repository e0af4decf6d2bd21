"""Drafts from a corpus: greedy answers to a suite with three corpora, in turn, by the default settings.

None; the model's answers to other suites; those and its answers to this suite, as where requests come again. The order
changes with each prompt. Suites are read from LADE_DATA.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import click
import torch
from namelists import SUITE, names_among
from printing import Report

import lade
from lade.applications.bench.conversation import Conversation
from lade.applications.bench.machine import available_cores, describe
from lade.applications.bench.promptsets import from_suites
from lade.applications.bench.suites import SUITES
from lade.applications.bench.task import RunOptions, ask, make_task
from lade.applications.options import MODEL
from lade.drafters import compiling
from lade.models import load

NONE, OTHERS, ALL = "none", "answers to other suites", "answers to this one too"


@dataclass
class Sum:
    """With one corpus: over all prompts, and the seconds of each."""

    tokens: int = 0
    steps: int = 0
    seconds: list[float] = field(default_factory=list)

    def told(self, name: str, without: Sum) -> str:
        ratio = median(first / second for first, second in zip(without.seconds, self.seconds, strict=True))
        whole = sum(without.seconds) / sum(self.seconds)
        return (
            f"corpus: {name:24} tokens per step {self.tokens / self.steps:5.2f}  "
            f"speed over none: in total {whole:.2f}, median {ratio:.2f}"
        )


class Asker:
    """A model that answers prompts."""

    def __init__(self, model: Any, tokenizer: Any, new_tokens: int) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._options = RunOptions(max_new_tokens=new_tokens, turns=1)

    def prompts(self, suite: str, limit: int) -> list[list[int]]:
        """As tokens; those that do not fit the model are left out."""
        (found,) = from_suites(suite, limit, 0, execute=False)
        task = make_task(suite, found.prompts, self._model, self._tokenizer, self._options)
        return [ask(Conversation(task.style), fitting, 0, self._options) for fitting in task.prompts]

    def answer(self, prompt: Sequence[int], corpus: Path | None, into: Sum) -> list[int]:
        ids, new = torch.tensor([prompt]), self._options.max_new_tokens
        config = lade.LookaheadConfig(corpus=corpus)
        begun = time.perf_counter()
        text = lade.generate(
            self._model,
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=new,
            config=config,
        )
        into.seconds.append(time.perf_counter() - begun)
        stats = lade.last_stats()
        assert stats is not None
        into.tokens, into.steps = into.tokens + text.shape[1] - len(prompt), into.steps + stats.steps
        found: list[int] = text[0, len(prompt) :].tolist()
        return found


@click.command()
@click.option("--model", default="lade-code-8M", callback=MODEL, show_default=True)
@click.option("--suite", type=SUITE, default="human_eval", show_default=True, help="Decoded with each corpus.")
@click.option("--others", default="mbpp,class_eval", show_default=True, callback=names_among(SUITES))
@click.option("--n", "limit", default=60, show_default=True, type=click.IntRange(1), help="Prompts of each suite.")
@click.option("--new-tokens", default=256, show_default=True, type=click.IntRange(2))
@click.option("--dtype", default="float32", show_default=True)
@click.option("--threads", default=available_cores, type=click.IntRange(1), help="[default: all cores]")
@click.option("--json", "as_json", is_flag=True)
def main(
    *, model: str, suite: str, others: list[str], limit: int, new_tokens: int, dtype: str, threads: int, as_json: bool
) -> None:
    """Measure what a corpus gains."""
    if suite in others:
        raise click.BadParameter(f"must not hold {suite}, which is --suite", param_hint="'--others'")
    torch.set_num_threads(threads)
    compiling.begin()
    compiling.wait()
    loaded, tokenizer = load(model, dtype=dtype)
    asker = Asker(loaded, tokenizer, new_tokens)
    ways = {"model": model, "dtype": dtype, "threads": threads, "machine code": compiling.DRAFT.machine is not None}
    report = Report(describe(loaded.device) | ways, as_json)
    prompts = asker.prompts(suite, limit)
    answers = [asker.answer(prompt, None, Sum()) for prompt in prompts]
    more = [asker.answer(prompt, None, Sum()) for name in others for prompt in asker.prompts(name, limit)]
    sums = {NONE: Sum(), OTHERS: Sum(), ALL: Sum()}
    with TemporaryDirectory() as folder:
        paths = {NONE: None, OTHERS: Path(folder, "others"), ALL: Path(folder, "all")}
        lade.Corpus(more).save(Path(folder, "others"))
        lade.Corpus([*more, *answers]).save(Path(folder, "all"))
        for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            names = [*paths][number % 3 :] + [*paths][: number % 3]
            for name in names:
                if asker.answer(prompt, paths[name], sums[name]) != answer:
                    raise click.ClickException(f"prompt {number}: another text with the corpus of {name}")
    report.line(
        f"{suite}: {len(prompts)} prompts, {sums[NONE].tokens} tokens; other suites: {sum(map(len, more))} tokens"
    )
    for name, found in sums.items():
        report.line(found.told(name, sums[NONE]))
    report.end(sums={name: vars(found) for name, found in sums.items()})


if __name__ == "__main__":
    main()
