"""Texts of several processes beside those of one: `python benchmarks/several.py --prompts 2`.

Tiny models of five families and the story model, in float32: greedy and seeded, alone and in batches of four prompts of
unequal lengths, modes "lookahead" and "auto", tensor parallel and lookahead parallel, over 2, 3 and 4 processes. In
lookahead parallel, ranks compute or get what they lack of accepted paths, in turn, or choose as in every call.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import click
import torch
from integerlists import integers_from
from namelists import names_among

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import ranks  # noqa: E402
from families import BY_NAME  # noqa: E402
from stories import PROMPTS  # noqa: E402
from tiny import tiny_model, words  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

import lade  # noqa: E402
from lade.distributed.steps import StepTimes  # noqa: E402
from lade.distributed.tried import Way  # noqa: E402

STORY = "stories260K"
FAMILIES = ("llama", "mistral-sliding", "qwen2", "olmo2", "granite")
DIVISIBLE = {  # by 2, 3 and 4
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "vocab_size": 96,
}
KINDS = ("tensor parallel", "lookahead parallel")
PATIENCE = 3600.0  # seconds
LENGTHS = ((9,), (4, 13, 7, 10))


@dataclass(frozen=True)
class Case:
    """One call of every rank."""

    model: str
    kind: str
    mode: str
    sampled: bool
    batch: int
    prompt: int

    def arguments(self) -> dict[str, Any]:
        sampling = {"do_sample": True, "top_k": 0} if self.sampled else {"do_sample": False}
        return inputs(self.model, self.batch, self.prompt) | sampling


@cache
def tiny(name: str) -> Any:
    family = replace(BY_NAME[name], config=BY_NAME[name].config | DIVISIBLE)
    return tiny_model(family, "sdpa")


@cache
def story() -> Any:
    model, tokenizer = lade.models.load(STORY, dtype="float32")
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.pad_token or tokenizer.unk_token
    return model, tokenizer


def whole(name: str) -> Any:
    return story()[0] if name == STORY else tiny(name)


def inputs(name: str, batch: int, prompt: int) -> dict[str, Any]:
    if name != STORY:
        return words(*LENGTHS[batch > 1], seed=prompt)
    texts = [PROMPTS[(prompt + row) % len(PROMPTS)] for row in range(batch)]
    encoded = story()[1](texts, return_tensors="pt", padding=True)
    return {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}


def cases(number: int, prompts: range, names: tuple[str, ...]) -> Iterator[Case]:
    for name, kind, prompt in product(names, KINDS, prompts):
        if name == STORY and number == 3 and kind == KINDS[0]:
            continue  # its heads cannot be divided
        for mode, sampled, batch in product(("lookahead", "auto"), (False, True), (1, 4)):
            yield Case(name, kind, mode, sampled, batch, prompt)


def texts(model: Any, case: Case, new_tokens: int, number: int) -> list[list[int]]:
    workers, adapt = number if case.kind == KINDS[1] else 1, case.prompt % 2 == 1
    settings = lade.LookaheadConfig(mode=case.mode, workers=workers, adapt=adapt, timeout=60)
    sends = not adapt and (case.prompt // 2 + case.sampled + (case.mode == "auto")) % 2 == 1
    StepTimes.begin = sent if sends else CHOSEN  # type: ignore[method-assign]
    torch.manual_seed(case.prompt)
    found = lade.generate(model, **case.arguments(), max_new_tokens=new_tokens, config=settings)
    stats = lade.last_stats()
    assert stats is not None
    assert stats.fallback is None, stats.fallback
    return found.tolist()


CHOSEN = StepTimes.begin


def sent(steps: StepTimes, *step: Any) -> Way:
    """All ranks share a step, and send what one lacks."""
    return Way(CHOSEN(steps, *step).ranks, sends=True)


def work(folder: Path, number: int, prompts: range, names: tuple[str, ...], new_tokens: int, rank: int) -> list[Any]:
    """The texts of all cases on one rank."""
    warnings.simplefilter("ignore", FutureWarning)
    sharded: dict[str, Any] = {}
    found = []
    for case in cases(number, prompts, names):
        model = whole(case.model)
        if case.kind == KINDS[0]:
            if case.model not in sharded:
                path = folder / case.model
                sharded[case.model] = AutoModelForCausalLM.from_pretrained(path, tp_plan="auto").eval()
            model = sharded[case.model]
        found.append(texts(model, case, new_tokens, number))
    return found


@click.command()
@click.option("--prompts", default=2, show_default=True, type=click.IntRange(1), help="Prompts per combination.")
@click.option("--first", default=0, show_default=True, help="Number of the first prompt.")
@click.option(
    "--ranks", "numbers", default="2,3,4", show_default=True, callback=integers_from(2), help="Numbers of processes."
)
@click.option(
    "--models", default=",".join((*FAMILIES, STORY)), show_default=True, callback=names_among((*FAMILIES, STORY))
)
@click.option("--new-tokens", default=24, show_default=True, type=click.IntRange(1))
def main(prompts: int, first: int, numbers: list[int], models: list[str], new_tokens: int) -> None:
    """Exit status 1 if a text on any rank is another than that of plain decoding in one process."""
    folder, names, start = Path(tempfile.mkdtemp(prefix="several-")), tuple(models), time.perf_counter()
    torch.set_num_threads(1)
    for name in names:
        whole(name).save_pretrained(folder / name)
    plain: dict[Case, list[list[int]]] = {}
    same, different = Counter[str](), 0
    for number in numbers:
        given = folder, number, range(first, first + prompts), names, new_tokens
        ran = list(cases(*given[1:4]))
        found = ranks.run(folder / str(number), number, partial(work, *given), PATIENCE)
        for index, case in enumerate(ran):
            expected = plain_texts(plain, case, new_tokens)
            for rank, each in enumerate(found):
                wrong = sum(one != other for one, other in zip(each[index], expected, strict=True))
                if wrong:
                    click.echo(f"DIFFERENT: {case} on rank {rank} of {number}: {wrong} texts")
                different += wrong
                same[f"{number} processes, {case.kind}"] += (len(expected) - wrong) if rank == 0 else 0
        click.echo(f"{number} processes: {sum(same.values())} texts so far, {time.perf_counter() - start:.0f} s")
    for name, count in same.items():
        click.echo(f"{name}: {count} texts")
    click.echo(f"{sum(same.values())} texts are those of one process, on every rank" if not different else "FAILED")
    sys.exit(1 if different else 0)


def plain_texts(known: dict[Case, list[list[int]]], case: Case, new_tokens: int) -> list[list[int]]:
    key = replace(case, kind="", mode="")
    if key not in known:
        torch.manual_seed(case.prompt)
        known[key] = whole(case.model).generate(**case.arguments(), max_new_tokens=new_tokens).tolist()
    return known[key]


if __name__ == "__main__":
    main()
