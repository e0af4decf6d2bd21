"""`lade chat`: its options, and what is read from an argument, a pipe or a terminal.

Knows the terminal; the conversation is in bot.py, the loop in session.py.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lade.applications.aliases import renamed
from lade.applications.chat.commands import COMMANDS
from lade.applications.chat.formats import TYPES
from lade.applications.chat.images import ChatImages, read_image
from lade.applications.chat.reader import LineReader, Reader, TerminalReader, history_file
from lade.applications.chat.session import Session
from lade.applications.chat.settings import ChatSettings
from lade.applications.chat.toys import REAL, name_of, notice
from lade.applications.exits import INTERRUPTED, Command, failing, switch, usage
from lade.applications.options import (
    MODEL,
    QUANT,
    SEED,
    FiniteRange,
    check_corpus,
    configure_lade,
    corpus_option,
    flash_option,
    load_model,
    machine_options,
    pack_option,
    temperature_option,
    window_options,
)
from lade.base import environment
from lade.models.pulled import is_pulled
from lade.models.shipped import TARGET

if TYPE_CHECKING:
    from lade.applications.chat.bot import Chatbot

PATH = click.Path(path_type=Path)
Callback = Callable[..., Any]
TYPE_HELP = "Prompt format: the tokenizer's chat template (plain text without one), Llama 2's, plain text, no format."


def kept_for_compatibility(name: str, told: str, reason: str, **attributes: Any) -> Callable[[Callback], Callback]:
    """An option of the original that only accepts its default."""

    def check(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value != param.default:
            raise click.BadParameter(f"must be {param.default!r}, got {value!r}: {reason}", ctx, param)

    return renamed(name, spelt_before(name), help=told, expose_value=False, callback=check, hidden=True, **attributes)


def spelt_before(name: str) -> str:
    """The original's spelling: `--use_ds` for `--use-ds`."""
    return f"--{name.removeprefix('--').replace('-', '_')}"


@click.command("chat", cls=Command)
@click.argument("model", callback=MODEL, required=False)
@click.argument("prompt", required=False)
@renamed("--model", "--model_path", name="model_path", callback=MODEL, hidden=True, help="MODEL, as an option.")
@click.option("--system", help="System prompt.")
@click.option(
    "--image", "images", type=PATH, multiple=True, help="An image's file, for the first message. May be repeated."
)
@temperature_option
@click.option("--top-p", default=1.0, show_default=True, type=FiniteRange(0, 1, min_open=True))
@click.option("--top-k", default=0, show_default=True, type=click.IntRange(min=0), help="0: all tokens.")
@click.option("--seed", type=SEED, help="Of the first sampled answer.  [default: random]")
@renamed(
    "--max-new-tokens",
    "--max_new_tokens",
    type=click.IntRange(min=1),
    default=ChatSettings.max_new_tokens,
    show_default=True,
    help="New tokens per answer, at most.",
)
@click.option("--color/--no-color", default=None, help="Colour tokens accepted together.  [default: COLOR_PRINT]")
@click.option("--markdown", is_flag=True, help="Show answers as Markdown, paragraph by paragraph.")
@click.option("--stats/--no-stats", default=None, help="Statistics after each answer.  [default: in a terminal]")
@click.option("--lookahead-off", is_flag=True, help="Plain decoding, one token per forward; so does USE_LADE=0.")
@click.option("--draft", callback=MODEL, help="A draft model with the same tokenizer.")
@window_options
@flash_option
@corpus_option
@machine_options
@click.option("--quant", type=QUANT, help="Quantise the weights.  [default: the checkpoint's own]")
@pack_option
@renamed("--cache-dir", "--cache_dir", default="", help="Folder for downloads from the hub.")
@renamed("--model-type", "--model_type", type=click.Choice(TYPES), default="auto", show_default=True, help=TYPE_HELP)
@click.option("--chat", is_flag=True, help="Read a pipe line by line, each line a message.")
@click.option("--debug", is_flag=True, hidden=True, help="As --stats.")
@kept_for_compatibility(
    "--use-ds", "Rejected: DeepSpeed is not supported.", "DeepSpeed is not supported", is_flag=True, default=False
)
@kept_for_compatibility("--local-rank", "Only 0: there is one process.", "there is one process", type=int, default=0)
def command(*, model: str | None, model_path: str | None, **options: Any) -> None:
    """Chat with MODEL, or answer PROMPT and end. A pipe's text is the prompt, or follows it.

    MODEL is a model that ships or was pulled, a folder or a hub name; smollm2-135m where it was pulled, else the small
    code model that ships. /help lists the commands of a chat.
    """
    if model is not None and model_path is not None:
        raise click.UsageError("MODEL must be given once, got an argument and --model")
    with usage():
        off = options["lookahead_off"] or not environment.switch("USE_LADE", default=True)
    chat(model or model_path or default_model(), **options | {"lookahead_off": off})


def default_model() -> str:
    """The pulled model, or the one that ships."""
    return REAL if is_pulled(REAL) else TARGET


def chat(
    model: str,
    *,
    reader: Reader | None = None,
    prompt: str | None,
    chat: bool,
    system: str | None,
    images: Sequence[Path],
    color: bool | None,
    stats: bool | None,
    debug: bool,
    lookahead_off: bool,
    model_type: str,
    **options: Any,
) -> None:
    """Load what the options say, and answer one prompt or hold a conversation.

    Args:
        reader: of messages; `None` reads what the options say.
    """
    if isinstance(sys.stdin, io.TextIOWrapper):  # invalid characters do not end the chat
        sys.stdin.reconfigure(errors="replace")
    terminal = sys.stdin.isatty() and sys.stdout.isatty() and prompt is None and reader is None
    settings = ChatSettings(
        **{name: options.pop(name) for name in ("temperature", "top_p", "top_k", "seed", "max_new_tokens", "markdown")},
        plain=lookahead_off,
        stats=terminal if stats is None and not debug else bool(stats or debug),
        color=switch("COLOR_PRINT") if color is None else color,
    )
    with usage("--image"):
        attached = [read_image(path) for path in images]
    bot = load_chatbot(model, model_type, settings, **options)
    if attached:
        with usage("--image"):
            bot.check_images()
        bot.attached = attached
    with usage("--system"):
        bot.set_system(system)
    session = Session(bot, name_of(model))
    if terminal:
        greet(session)
        session.run(TerminalReader(history_file(), COMMANDS))
    elif reader is not None or (chat and prompt is None):
        session.run(reader or LineReader())
    else:
        answer_once(bot, name_of(model), "\n\n".join(filter(None, [prompt, piped()])))


def load_chatbot(
    model: str,
    model_type: str,
    settings: ChatSettings,
    *,
    dtype: str | None,
    device: str,
    threads: int,
    quant: str | None,
    pack: bool | None,
    cache_dir: str,
    draft: str | None,
    mode: str | None,
    level: int | None,
    window_size: int | None,
    guess_set_size: int | None,
    use_flash: bool,
    corpus: Path | None,
) -> Chatbot:
    """The model, and a chatbot on it."""
    sizes = {"LEVEL": level, "WINDOW_SIZE": window_size, "GUESS_SET_SIZE": guess_set_size}
    configure_lade(MODE=mode, **sizes, USE_FLASH=use_flash, CORPUS=corpus)
    import torch

    import lade
    from lade.applications.chat.bot import Chatbot
    from lade.applications.chat.decoder import decoder_for
    from lade.applications.chat.formats import prompt_format
    from lade.models.processor import load_processor

    torch.set_num_threads(threads)
    place: dict[str, Any] = {"dtype": dtype, "device": device, "pack": pack}
    network, tokenizer = load_model(model, cache_dir=cache_dir or None, quant=quant or None, **place)
    check_corpus(corpus, network)
    with failing(ValueError):
        method = None if draft is None else lade.DraftModel(load_model(draft, **place)[0])
        decoder = decoder_for(network, tokenizer, method)
    images = ChatImages(network, lambda: load_processor(model, cache_dir or None))
    form = prompt_format(model_type, tokenizer, lambda: images.template)
    return Chatbot(network, tokenizer, form, decoder, settings, images)


def piped() -> str:
    """All of the pipe's text; none of a terminal's."""
    return "" if sys.stdin.isatty() else sys.stdin.read().strip()


def answer_once(bot: Chatbot, model: str, prompt: str) -> None:
    """Only the answer is written to stdout."""
    if not prompt:
        raise click.UsageError("the prompt must have at least one character, got none from the pipe")
    session = Session(bot, model, answering="")
    with failing(ValueError):
        reply = session.answer(lambda write, stopped: bot.answer(prompt, write, stopped))
    if reply is not None and reply.cost.interrupted:
        raise click.exceptions.Exit(INTERRUPTED)


def greet(session: Session) -> None:
    """Which model answers and how fast it may, what it can do, and how to leave."""
    from lade.memory.warm.warming import cached

    bot = session.bot
    size = sum(weight.numel() for weight in bot.model.parameters()) / 1e6
    how = str(bot.model.dtype).removeprefix("torch.")
    warm = "a warm table" if cached(bot.model, tokenizer=bot.tokenizer) else "no warm table"
    session.say(f"{session.model}: {size:,.1f} million parameters, {how}, {bot.model.device}, {warm}")
    if warm.startswith("no") and bot.decoder.reason is None:
        session.say(f"`lade warm {session.model}` computes the table once; answers then take fewer steps.")
    for line in notice(session.model, bool(bot.tokenizer.chat_template) or bot.prompt_format.takes_images):
        session.say(line)
    session.say("/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.")
