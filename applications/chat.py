"""`lade chat`: the flags of the original chatbot, the environment, and the loop over messages.

Knows the terminal; the conversation itself is in chatbot.py.
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
from lade.applications.options import DEVICE, DTYPE, MODE, MODEL, QUANT, configure_lade, default_device, load_model

Callback = Callable[..., Any]
QUESTION = "Which methods did Socrates employ to challenge the prevailing thoughts of his time?"


def kept_for_compatibility(name: str, told: str, reason: str, **attributes: Any) -> Callable[[Callback], Callback]:
    """A flag of the original that only takes its default."""

    def check(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value != param.default:
            raise click.BadParameter(f"{value!r}: allowed is {param.default!r}, {reason}", ctx, param)

    return renamed(name, spelt_before(name), help=told, expose_value=False, callback=check, **attributes)


def spelt_before(name: str) -> str:
    """As the original spelt it: `--use_ds` for `--use-ds`."""
    return f"--{name.removeprefix('--').replace('-', '_')}"


def messages(chat: bool) -> Iterator[str]:
    """The built-in question, or one message per line until the end of the input; blank lines are skipped."""
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
        if not sys.stdin.isatty():  # a pipe does not show what was typed
            click.echo(line)
        if line.strip():
            yield line.strip()


def write(text: str) -> None:
    """Straight to stdout: click.echo would take the colours out of a pipe, though COLOR_PRINT=1 asked for them."""
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
            click.echo(f"(the model's positions are full: turns forgotten, oldest first: {reply.dropped})", err=True)
        if debug:
            click.echo(reply.summary())


@click.command(cls=Command)
@renamed(
    "--model",
    "--model_path",
    name="model_path",
    callback=MODEL,
    help="Folder or hub name.  [default: the small story model that ships]",
)
@renamed(
    "--model-type",
    "--model_type",
    type=click.Choice(["auto", "llama"]),
    default="auto",
    show_default=True,
    help="Prompt format: the tokenizer's chat template (plain text where it has none), or Llama 2's.",
)
@click.option("--chat", is_flag=True, help="Read messages from the input; without, answer one built-in question.")
@click.option("--debug", is_flag=True, help="After each reply: tokens, steps, tokens per step, tokens/s.")
@click.option("--dtype", type=DTYPE, help="[default: the checkpoint's own]")
@click.option("--device", callback=DEVICE, default=default_device, help="[default: cuda where there is one, else cpu]")
@renamed(
    "--max-new-tokens",
    "--max_new_tokens",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Per reply.",
)
@renamed("--cache-dir", "--cache_dir", default="", help="Where downloads from the hub are kept.")
@click.option("--mode", type=MODE, help="auto: sizes are limits; lookahead: exactly these.  [default: auto]")
@click.option("--level", type=int, help="N, tokens of an n-gram.  [default: 5]")
@renamed("--window-size", "--window_size", type=int, help="W, columns of the window.  [default: 7]")
@renamed("--guess-set-size", "--guess_set_size", type=int, help="G, n-grams per key, -1 for all.  [default: W]")
@click.option("--quant", type=QUANT, help="Hold the weights in few bits.  [default: the checkpoint's own]")
@kept_for_compatibility(
    "--use-ds", "Refused: there is no DeepSpeed here.", "DeepSpeed is not supported", is_flag=True, default=False
)
@kept_for_compatibility("--local-rank", "Only 0: one process decodes.", "one process decodes", type=int, default=0)
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
    """Chat with a model; USE_LADE=1 decodes with lookahead, COLOR_PRINT=1 colours the tokens that it won."""
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):  # bytes or characters that the terminal cannot take end no chat
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
