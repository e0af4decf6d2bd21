"""The options of `lade bench`, and how their values are read. Knows no method and runs nothing."""

import math
from collections.abc import Callable
from typing import Any

import click

from lade.applications.aliases import renamed
from lade.applications.bench.references import REFERENCES
from lade.drafters.lengths import LENGTHS
from lade.models.quant import QUANTS


def several(kind: type[int] | type[float], least: float) -> Callable[..., tuple[float, ...] | None]:
    """A callback for numbers with commas between them, none below the least and none twice."""

    def read(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[float, ...] | None:
        if value is None:
            return None
        try:
            numbers = tuple(kind(part) for part in value.split(","))
        except ValueError:
            raise click.BadParameter(f"{value!r}: numbers with commas between them are needed") from None
        if not all(least <= number < math.inf for number in numbers):
            raise click.BadParameter(f"{value!r}: at least {least} is needed")
        if len(set(numbers)) < len(numbers):
            raise click.BadParameter(f"{value!r}: a number stands twice")
        return numbers

    return read


def eos_ids(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise click.BadParameter(f"{value!r}: token ids with commas between them are needed, such as 1,2")
    return tuple(int(part) for part in parts)


def guesses(context: click.Context, parameter: click.Parameter, value: int | None) -> int | None:
    if value is not None and value != -1 and value < 1:
        raise click.BadParameter(f"must be at least 1, or -1 for all, got {value}")
    return value


def together(*options: Callable[..., Any]) -> Callable[..., Any]:
    """One decorator for several options, shown in this order."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


method_options = together(
    renamed("--level", "--ngram", default=5, show_default=True, type=click.IntRange(min=2), help="N; auto: at most."),
    renamed(
        "--window-size",
        "--window",
        name="window",
        default=7,
        show_default=True,
        type=click.IntRange(min=1),
        help="W; auto: at most.",
    ),
    renamed(
        "--guess-set-size",
        "--guesses",
        name="guesses",
        callback=guesses,
        type=int,
        help="G, -1 for all; auto: at most; default W.",
    ),
    click.option("--pool-from-prompt", is_flag=True, help="Pool the n-grams of the prompt too."),
    click.option(
        "--lookup-tokens",
        default=10,
        show_default=True,
        type=click.IntRange(min=1),
        help="Draft length of prompt_lookup.",
    ),
    click.option("--budget", type=click.IntRange(min=1), help="Most tokens of a forward; default: the method's own."),
    click.option("--warm", is_flag=True, help="Draft from the warm table, made before the runs where it is missing."),
    click.option("--adapt/--no-adapt", default=True, help="Choose every forward's size anew, up to the budget."),
    click.option("--reference", type=click.Choice(list(REFERENCES)), help="A text that the output may repeat."),
    click.option("--draft", help="A second model with MODEL's tokenizer: drafts, or is the amateur of contrastive."),
    click.option("--draft-quant", type=click.Choice(list(QUANTS)), help="Hold its weights in few bits."),
    renamed("--draft-tokens", "--gamma", type=click.IntRange(min=1), help="Drafted per step."),
    click.option("--draft-adapt", type=click.Choice(list(LENGTHS)), help="How that number adapts."),
    click.option("--threshold", type=click.FloatRange(0, 1), help="Of confidence, where it adapts by that."),
    click.option("--widths", default="4-2-2", show_default=True, help="multi_candidate: candidates by depth."),
    click.option("--replacement", is_flag=True, help="multi_candidate: draw them with replacement."),
    click.option("--skip", help="self_speculative: a file of `lade skip-search`, or attention/MLP layers: 1-2/3."),
    click.option("--contrast-weight", default=1.0, show_default=True, help="Of the amateur's log-probabilities."),
    click.option(
        "--contrast-alpha", default=0.1, show_default=True, help="Plausible: above alpha times the likeliest."
    ),
    click.option("--amateur-temperature", default=1.0, show_default=True, help="Of the amateur's distribution."),
    click.option("--vocabulary", type=click.IntRange(min=1), help="Of both tokenizers, where models pad it apart."),
)

grid_options = together(
    click.option(
        "--temperature",
        default="0",
        show_default=True,
        callback=several(float, 0),
        help="0: greedy; 0,1: both in turn.",
    ),
    click.option(
        "--batch", default="1", show_default=True, callback=several(int, 1), help="Prompts side by side: 1,4."
    ),
    click.option(
        "--context",
        callback=several(int, 1),
        help="Cut prompts, or fill them up from others, to so many tokens: 256,1024. With --memory: one; default 2048, "
        "or as many as the model has positions for.",
    ),
)

run_options = together(
    click.option("--max-new-tokens", default=128, show_default=True, type=click.IntRange(min=1)),
    click.option("--repeats", default=1, show_default=True, type=click.IntRange(min=1), help="Runs of each prompt."),
    click.option("--warmup", default=1, show_default=True, type=click.IntRange(min=0), help="Untimed calls first."),
    click.option("--seed", default=0, show_default=True, type=int),
    click.option("--top-k", default=0, show_default=True, type=click.IntRange(min=0), help="0: all tokens."),
    click.option("--top-p", default=1.0, show_default=True, type=click.FloatRange(0, 1, min_open=True)),
    click.option("--eos", callback=eos_ids, help="Token ids that end a text; default: the model's own."),
    click.option("--turns", type=click.IntRange(min=1), help="Only so many turns of a conversation."),
    click.option("--chat/--no-chat", default=True, help="Use the model's chat template, where it has one."),
)
