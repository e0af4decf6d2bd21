"""`lade chat`: the options of the original chatbot, the environment, and the loop over messages.

Knows the terminal; the conversation is in chatbot.py.
"""

import io
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

import lade
from lade.applications.aliases import renamed
from lade.applications.chatbot import Chatbot, MessageTooLongError, prompt_format
from lade.applications.exits import Command, switch
from lade.applications.options import (
    MODEL,
    QUANT,
    configure_lade,
    device_option,
    dtype_option,
    load_model,
    window_options,
)
from lade.models.shipped import TARGET

Callback = Callable[..., Any]
QUESTION = "Which methods did Socrates employ to challenge the prevailing thoughts of his time?"


def kept_for_compatibility(name: str, told: str, reason: str, **attributes: Any) -> Callable[[Callback], Callback]:
    """An option of the original that only accepts its default."""

    def check(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value != param.default:
            raise click.BadParameter(f"must be {param.default!r}, got {value!r}: {reason}", ctx, param)

    return renamed(name, spelt_before(name), help=told, expose_value=False, callback=check, **attributes)


def spelt_before(name: str) -> str:
    """The original's spelling: `--use_ds` for `--use-ds`."""
    return f"--{name.removeprefix('--').replace('-', '_')}"


def messages(chat: bool) -> Iterator[str]:
    """The built-in question, or one message per input line; blank lines are skipped."""
    if not chat:
        click.echo(f"User: {QUESTION}")
        yield QUESTION
        return
    while True:
        try:
            line = input("User: ")
        except EOFError:
            click.echo()
            return
        if not sys.stdin.isatty():  # a pipe does not echo its input
            click.echo(line)
        if line.strip():
            yield line.strip()


def write(text: str) -> None:
    """Directly to stdout: click.echo removes colours from a pipe, even with COLOR_PRINT=1."""
    sys.stdout.write(text)
    sys.stdout.flush()


def converse(bot: Chatbot, *, chat: bool, debug: bool) -> None:
    for message in messages(chat):
        write("Assistant: ")
        try:
            reply = bot.answer(message)
        except MessageTooLongError as error:
            click.echo()
            if not chat:
                raise click.ClickException(str(error)) from error
            click.echo(f"({error})", err=True)
            continue
        click.echo()
        if reply.dropped:
            click.echo(f"(the model's positions are full: {reply.dropped} of the oldest turns dropped)", err=True)
        if debug:
            click.echo(reply.summary())


@click.command(cls=Command)
@renamed(
    "--model",
    "--model_path",
    name="model_path",
    callback=MODEL,
    help=f"A model that ships or was pulled, a folder or a hub name.  [default: {TARGET}]",
)
@renamed(
    "--model-type",
    "--model_type",
    type=click.Choice(["auto", "llama"]),
    default="auto",
    show_default=True,
    help="Prompt format: the tokenizer's chat template (plain text without one), or Llama 2's.",
)
@click.option("--chat", is_flag=True, help="Read messages from the input; without it, answer one built-in question.")
@click.option("--debug", is_flag=True, help="Print tokens, steps, tokens per step and tokens/s after each reply.")
@dtype_option
@device_option
@renamed(
    "--max-new-tokens",
    "--max_new_tokens",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="New tokens per reply, at most.",
)
@renamed("--cache-dir", "--cache_dir", default="", help="Folder for downloads from the hub.")
@window_options
@click.option("--quant", type=QUANT, help="Quantise the weights.  [default: the checkpoint's own]")
@kept_for_compatibility(
    "--use-ds", "Rejected: DeepSpeed is not supported.", "DeepSpeed is not supported", is_flag=True, default=False
)
@kept_for_compatibility("--local-rank", "Only 0: there is one process.", "there is one process", type=int, default=0)
def command(
    *,
    model_path: str | None,
    model_type: str,
    chat: bool,
    debug: bool,
    dtype: str | None,
    device: str,
    max_new_tokens: int,
    cache_dir: str,
    mode: str | None,
    level: int | None,
    window_size: int | None,
    guess_set_size: int | None,
    quant: str | None,
) -> None:
    """Chat with a model; USE_LADE=1 decodes with lookahead, COLOR_PRINT=1 colours the accepted draft tokens."""
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):  # invalid characters do not end the chat
            stream.reconfigure(errors="replace")
    configure_lade(MODE=mode, LEVEL=level, WINDOW_SIZE=window_size, GUESS_SET_SIZE=guess_set_size)
    lookahead, color = switch("USE_LADE"), switch("COLOR_PRINT")
    model, tokenizer = load_model(
        model_path, dtype=dtype, device=device, cache_dir=cache_dir or None, quant=quant or None
    )
    if lookahead:
        lade.augment_all()
    bot = Chatbot(
        model,
        tokenizer,
        prompt_format(model_type, tokenizer),
        max_new_tokens,
        write,
        color=color,
        lookahead=lookahead,
    )
    converse(bot, chat=chat, debug=debug)
