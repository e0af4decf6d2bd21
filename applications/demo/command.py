"""`lade demo`: its options, the model and prompt, and the race on the screen."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import click

from lade.applications.chat.command import default_model
from lade.applications.chat.toys import name_of
from lade.applications.exits import Command, failing
from lade.applications.options import MODEL, QUANT, load_model, machine_options, pack_option
from lade.models.shipped import NAMES, prompt_for

if TYPE_CHECKING:
    import torch
    from rich.console import Console
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from lade.applications.demo.race import Run
    from lade.applications.demo.screen import Screen
    from lade.applications.demo.sides import Side

QUESTION = "Write a Python function that counts how often each word occurs in a text, and explain it step by step."
WARM_UP = 24  # tokens that each side decodes before, so that neither pays for the first calls
FRAME_SECONDS = 0.1


@click.command("demo", cls=Command)
@click.argument("model", callback=MODEL, required=False)
@click.option("--prompt", help="What both answer or continue.  [default: one for the model]")
@click.option("--max-new-tokens", default=256, show_default=True, type=click.IntRange(min=1))
@click.option("--warm/--no-warm", default=None, help="Compute the warm table first.  [default: for models that ship]")
@machine_options
@click.option("--quant", type=QUANT, help="Quantise the weights.  [default: the checkpoint's own]")
@pack_option
def command(
    *,
    model: str | None,
    prompt: str | None,
    max_new_tokens: int,
    warm: bool | None,
    dtype: str | None,
    device: str,
    threads: int,
    quant: str | None,
    pack: bool | None,
) -> None:
    """Plain decoding and lade write the same text side by side, greedily.

    MODEL is a model that ships or was pulled, a folder or a hub name; smollm2-135m where it was pulled, else the small
    code model that ships.
    """
    import torch

    from lade.entry.warming import check_drafts

    torch.set_num_threads(threads)
    path = model or default_model()
    network, tokenizer = load_model(path, dtype=dtype, device=device, quant=quant or None, pack=pack)
    name = name_of(path)
    with failing(ValueError):
        check_drafts(network)
    _warm_up(network, tokenizer, name, warm)
    ids = encoded(network, tokenizer, prompt or (prompt_for(name) if name in NAMES else QUESTION))
    most = room(network, ids, max_new_tokens)
    if most < max_new_tokens:
        click.echo(f"the model has positions for {most} new tokens, fewer than {max_new_tokens}", err=True)
    how = str(network.dtype).removeprefix("torch.")
    screen = decode(network, tokenizer, ids, most, f"{name}, {how}, {network.device}")
    click.echo(conclusion(network, ids, screen))


def _warm_up(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str, wanted: bool | None) -> None:
    """Load the warm table, or compute it where that is wanted."""
    import lade
    from lade.memory.warm.warming import cached

    if wanted or (wanted is None and name in NAMES):
        with failing(ValueError, RuntimeError):
            lade.warm_up(model, tokenizer=tokenizer)
    elif wanted is None and cached(model, tokenizer=tokenizer) is None:
        click.echo(f"no warm table; `lade warm {name}` computes it once, and lade gains more", err=True)


def encoded(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str) -> torch.Tensor:
    """[1, P] token ids, in the chat template where there is one."""
    from lade.applications.chat.formats import TEXT, Format

    form = Format(template=None) if tokenizer.chat_template else TEXT
    with failing(ValueError):
        ids: torch.Tensor = form.encode(tokenizer, [{"role": "user", "content": prompt}])["input_ids"]
    return ids.to(model.device)


def room(model: PreTrainedModel, ids: torch.Tensor, most: int) -> int:
    """New tokens that the model has positions for, `most` at most."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or ids.shape[1] + most
    if ids.shape[1] >= positions:
        raise click.BadParameter(
            f"must have fewer than {positions} tokens, got {ids.shape[1]}", param_hint="'--prompt'"
        )
    return min(most, positions - ids.shape[1])


def decode(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, ids: torch.Tensor, most: int, heading: str
) -> Screen:
    """Run both sides one after the other, so that each is timed alone, and show them.

    Drawing takes no side's time. In a terminal plain decoding is shown twice: while it runs, and beside lade.
    """
    from rich.console import Console

    from lade.applications.demo.race import timed
    from lade.applications.demo.screen import Screen

    for name, side in sides(model, ids, min(most, WARM_UP), "demo-warm-up").items():
        for _ in timed(name, side):
            pass
    both = sides(model, ids, most, "demo")
    screen = Screen(tokenizer, ids[0].tolist(), heading, list(both))
    console = Console(file=sys.stdout)
    if console.is_terminal:
        play(both, screen, console)
    else:
        for name, side in both.items():
            for step in timed(name, side):
                screen.add(step)
        screen.rule = ""
        console.print(screen)
    return screen


def play(
    both: Mapping[str, Side], screen: Screen, console: Console, sleep: Callable[[float], object] = time.sleep
) -> None:
    from rich.live import Live

    from lade.applications.demo.race import LADE, PLAIN, beside, timed

    with Live(screen, console=console, auto_refresh=False) as live:
        shown = 0.0

        def draw() -> None:
            nonlocal shown
            if time.monotonic() - shown > FRAME_SECONDS:
                live.refresh()
                shown = time.monotonic()

        for step in timed(PLAIN, both[PLAIN]):
            screen.add(step)
            draw()
        before = screen.restart(PLAIN)
        for step, seconds in beside(before.steps, timed(LADE, both[LADE])):
            if seconds:
                sleep(seconds)
            screen.add(step)
            draw()
        live.refresh()


def sides(model: PreTrainedModel, ids: torch.Tensor, most: int, tenant: str) -> dict[str, Side]:
    """Both ways to decode a prompt. An error where the model cannot decode draft trees."""
    from lade.applications.demo.race import LADE, PLAIN
    from lade.applications.demo.sides import Lookahead, Plain

    with failing(ValueError):
        return {PLAIN: Plain(model, ids, most), LADE: Lookahead(model, ids, most, tenant)}


def conclusion(model: PreTrainedModel, ids: torch.Tensor, screen: Screen) -> str:
    """The last line."""
    from lade.applications.demo.race import LADE, PLAIN, verdict

    plain, drafted = screen.sides[PLAIN].run, screen.sides[LADE].run
    return verdict(plain, drafted, _explained(model, ids, plain, drafted))


def _explained(model: PreTrainedModel, ids: torch.Tensor, plain: Run, drafted: Run) -> bool | None:
    """Whether a near-tie explains where the texts part; `None` where they do not."""
    import torch

    from lade.measure.audit import parting

    if plain.tokens == drafted.tokens:
        return None
    prompt = ids[0].tolist()
    one, other = (torch.tensor(prompt + run.tokens) for run in (plain, drafted))
    found = parting(model, one, other, len(prompt))
    return None if found is None else found.explained
