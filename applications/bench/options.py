"""The options of `lade bench` and their parsers. Knows no method and runs nothing."""

from collections.abc import Callable

import click

from lade.applications.aliases import renamed
from lade.applications.bench.references import REFERENCES
from lade.applications.options import FiniteRange, draft_quant_option, flash_option, seed_option, together
from lade.applications.text_measures import UNITS
from lade.base.coldest import ALLOWED, COLDEST, is_temperature
from lade.drafters.lengths import LENGTHS


def several(
    kind: type[int] | type[float], allowed: str, holds: Callable[[float], bool]
) -> Callable[..., tuple[float, ...] | None]:
    """A callback for different numbers for which `holds` is true, separated by commas."""

    def read(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[float, ...] | None:
        if value is None:
            return None
        try:
            numbers: tuple[float, ...] = tuple(kind(part) for part in value.split(","))
        except ValueError:
            numbers = ()
        if not numbers or not all(map(holds, numbers)):
            raise click.BadParameter(f"must be numbers separated by commas, each {allowed}, got {value!r}")
        if len(set(numbers)) < len(numbers):
            raise click.BadParameter(f"must be different numbers, got {value!r}")
        return numbers

    return read


def eos_ids(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise click.BadParameter(f"must be token ids separated by commas, such as 1,2, got {value!r}")
    return tuple(int(part) for part in parts)


def guesses(context: click.Context, parameter: click.Parameter, value: int | None) -> int | None:
    if value is not None and value != -1 and value < 1:
        raise click.BadParameter(f"must be at least 1, or -1 for all, got {value}")
    return value


POSITIVE = several(int, "an integer of at least 1", lambda number: number >= 1)

method_options = together(
    renamed("--level", "--ngram", default=5, show_default=True, type=click.IntRange(min=2), help="N; auto: a limit."),
    renamed(
        "--window-size",
        "--window",
        name="window",
        default=7,
        show_default=True,
        type=click.IntRange(min=1),
        help="W; auto: a limit.",
    ),
    renamed(
        "--guess-set-size",
        "--guesses",
        name="guesses",
        callback=guesses,
        type=int,
        help="G, -1 for all; auto: a limit.  [default: W]",
    ),
    click.option("--pool-from-prompt", is_flag=True, help="Pool the prompt's n-grams too."),
    click.option(
        "--lookup-tokens",
        default=10,
        show_default=True,
        type=click.IntRange(min=1),
        help="Draft length of prompt_lookup.",
    ),
    click.option("--budget", type=click.IntRange(min=1), help="Tokens per forward, at most.  [default: the method's]"),
    click.option("--warm", is_flag=True, help="Draft from the warm table; it is computed first if missing."),
    flash_option,
    click.option("--pack", is_flag=True, help="Pack the model's weights for the CPU, for plain decoding too."),
    click.option("--adapt/--no-adapt", default=True, help="Choose the size of each forward, up to the budget."),
    click.option("--corpus", help="auto: draft from this corpus too (lade corpus)."),
    click.option("--reference", type=click.Choice(list(REFERENCES)), help="A reference text for the drafts."),
    click.option("--draft", help="A second model with MODEL's tokenizer: draft model or amateur."),
    draft_quant_option,
    renamed("--draft-tokens", "--gamma", type=click.IntRange(min=1), help="Tokens drafted per step."),
    click.option("--draft-adapt", type=click.Choice(list(LENGTHS)), help="How the draft length adapts."),
    click.option(
        "--threshold",
        type=FiniteRange(0, 1),
        help="Confidence below which drafting stops.",
    ),
    click.option("--widths", default="4-2-2", show_default=True, help="multi_candidate: candidates per depth."),
    click.option("--replacement", is_flag=True, help="multi_candidate: draw with replacement."),
    click.option("--skip", help="self_speculative: a file of `lade skip-search`, or attention/MLP layers: 1-2/3."),
    click.option(
        "--contrast-weight",
        default=1.0,
        show_default=True,
        type=FiniteRange(),
        help="Of the amateur's log-probabilities.",
    ),
    click.option(
        "--contrast-alpha",
        default=0.1,
        show_default=True,
        type=FiniteRange(0, 1),
        help="Keep tokens above alpha times the top probability.",
    ),
    click.option(
        "--amateur-temperature",
        default=1.0,
        show_default=True,
        type=FiniteRange(min=COLDEST),
        help="Temperature of the amateur.",
    ),
    click.option(
        "--vocabulary",
        type=click.IntRange(min=1),
        help="Of both tokenizers, if models pad it differently.",
    ),
)

grid_options = together(
    click.option(
        "--temperature",
        default="0",
        show_default=True,
        callback=several(float, ALLOWED, is_temperature),
        help="0: greedy; 0,1: both, one after the other.",
    ),
    click.option(
        "--batch", default="1", show_default=True, callback=POSITIVE, help="Prompts decoded side by side: 1,4."
    ),
    click.option(
        "--context",
        callback=POSITIVE,
        help="Cut or fill every prompt to this many tokens: 256,1024. With --memory one value.  [default there: 2048, "
        "or the model's positions]",
    ),
)

run_options = together(
    click.option("--max-new-tokens", default=128, show_default=True, type=click.IntRange(min=1)),
    click.option("--repeats", default=1, show_default=True, type=click.IntRange(min=1), help="Runs of each prompt."),
    click.option(
        "--warmup",
        default=1,
        show_default=True,
        type=click.IntRange(min=0),
        help="Untimed calls before; 0: the first run includes a model's one-off check.",
    ),
    seed_option,
    click.option("--top-k", default=0, show_default=True, type=click.IntRange(min=0), help="0: all tokens."),
    click.option("--top-p", default=1.0, show_default=True, type=FiniteRange(0, 1, min_open=True)),
    click.option("--eos", callback=eos_ids, help="Token ids that end a text.  [default: the model's]"),
    click.option("--turns", type=click.IntRange(min=1), help="Turns of a conversation, at most."),
    click.option("--chat/--no-chat", default=True, help="Use the model's chat template, if it has one."),
    click.option(
        "--text-units",
        default="tokens",
        show_default=True,
        type=click.Choice(list(UNITS)),
        help="What n-grams of texts are made of: entropy in nats over tokens, or in bits over words.",
    ),
)
