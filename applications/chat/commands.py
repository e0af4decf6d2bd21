"""The commands of a chat: lines that begin with a slash. One function and one row of `COMMANDS` each."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lade.applications.chat import conversation
from lade.applications.chat.images import read_image
from lade.applications.chat.messages import images_in, text_of
from lade.applications.chat.reply import Reply

if TYPE_CHECKING:
    from lade.applications.chat.session import Session

LIKE_A_COMMAND = re.compile(r"/[a-z]*(\s|$)")
QUOTE = '"""'


class Bye(Exception):  # noqa: N818 - no error
    """The user ends the chat."""


@dataclass(frozen=True)
class ChatCommand:
    """A command: what follows its name, what it does, and the function that gets the session and what follows."""

    arguments: str
    about: str
    run: Callable[[Session, str], None]


def is_command(message: str) -> bool:
    """Whether a message is one line that begins like a command: `/word`, but no path."""
    return "\n" not in message and LIKE_A_COMMAND.match(message) is not None


def run(session: Session, line: str) -> None:
    """Run a command line.

    Raises:
        ValueError, OSError: it is unknown, or its argument is wrong.
        Bye: the chat ends.
    """
    name, _, rest = line.partition(" ")
    if name not in COMMANDS:
        raise ValueError(f"the command must be one of {', '.join(COMMANDS)}, got {name}")
    COMMANDS[name].run(session, rest.strip())


def _help(session: Session, rest: str) -> None:
    width = max(len(f"{name} {command.arguments}") for name, command in COMMANDS.items())
    for name, command in COMMANDS.items():
        session.say(f"{f'{name} {command.arguments}'.ljust(width)}  {command.about}")
    session.say(f"A message may have several lines: paste it, or begin and end it with {QUOTE}.")
    session.say("Ctrl-C stops an answer, Ctrl-D leaves.")


def _clear(session: Session, rest: str) -> None:
    session.bot.forget()
    session.say("The conversation is empty.")


def _image(session: Session, rest: str) -> None:
    bot = session.bot
    if rest and _unquoted(rest) == "":
        bot.attached = []
    elif rest:
        bot.check_images()
        bot.attached += [read_image(path) for path in _paths(rest)]
    told = ", ".join(map(str, bot.attached))
    session.say(f"Attached to the next message: {told}." if told else "No image is attached.")


def _undo(session: Session, rest: str) -> None:
    message = session.bot.conversation.undo()
    if message is None:
        session.say("There is no message.")
    else:
        session.say(f"Dropped: {_one_line(text_of(message))}{_with_images(len(images_in([message])))}")


def _retry(session: Session, rest: str) -> None:
    if not session.bot.conversation.turns:
        session.say("There is no message.")
        return
    session.answer(session.bot.retry)
    if session.bot.settings.temperature == 0:
        session.say("Greedy decoding gives the same answer again; /set temperature 0.7 samples.")


def _system(session: Session, rest: str) -> None:
    if rest:
        session.bot.set_system(_unquoted(rest))
    system = session.bot.conversation.system
    session.say("There is no system prompt." if system is None else f"System prompt: {system}")


def _set(session: Session, rest: str) -> None:
    if not rest:
        for line in session.bot.settings.lines():
            session.say(line)
        return
    name, _, value = rest.partition(" ")
    session.bot.settings = session.bot.settings.with_text(name, value.strip())


def _save(session: Session, rest: str) -> None:
    path = _path(rest)
    conversation.save(path, session.bot.conversation, session.model)
    session.say(f"Saved {_counted(session)} in {path}.")


def _load(session: Session, rest: str) -> None:
    found = conversation.load(_path(rest))
    if images_in(found.turns):
        session.bot.check_images(found.turns)
    system, session.bot.conversation.system = session.bot.conversation.system, None
    try:
        session.bot.set_system(found.system)
    except ValueError:
        session.bot.conversation.system = system
        raise
    session.bot.conversation.turns = found.turns
    session.say(f"Loaded {_counted(session)}.")


def _stats(session: Session, rest: str) -> None:
    for line in session.bot.total.lines():
        session.say(line)


def _plain(session: Session, rest: str) -> None:
    settings = session.bot.settings
    value = settings.with_text("plain", rest).plain if rest else not settings.plain
    session.bot.settings = replace(settings, plain=value)
    session.say("One token per forward." if value else "Lookahead: several tokens per forward.")


def _compare(session: Session, rest: str) -> None:
    with session.interrupt:
        session.say("The last message is answered twice, plain and with lookahead.")
        found = session.bot.compare(lambda: session.interrupt.asked)
    if found is None:
        session.say("There is no message.")
        return
    for name, reply in zip(("plain", "lookahead"), found, strict=True):
        session.say(
            f"{name:9}  {reply.new_tokens} tokens in {reply.cost.steps} steps, "
            f"{reply.tokens_per_step:.2f} per step, {reply.speed:.1f} tokens/s"
        )
    session.say("Stopped; nothing to compare." if session.interrupt.asked else verdict(*found))


def verdict(plain: Reply, drafted: Reply) -> str:
    """One line that says what lookahead gained."""
    if plain.cost.tokens != drafted.cost.tokens:
        return f"{drafted.speed / plain.speed:.2f} times as fast; the texts differ, as near-ties fall by rounding."
    return f"The same text, {drafted.speed / plain.speed:.2f} times as fast."


def _bye(session: Session, rest: str) -> None:
    raise Bye


def _path(text: str) -> Path:
    """ValueError for no path, several, or an unknown user's home."""
    found = _paths(text)
    if len(found) != 1:
        raise ValueError(f"FILE must be one path, quoted if it has spaces: got {len(found)} words")
    return found[0]


def _paths(text: str) -> list[Path]:
    """ValueError for an unknown user's home, or a quote without its other half."""
    try:
        return [Path(word).expanduser() for word in shlex.split(text)]
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"FILE must be a path, quoted if it has spaces: {error}") from None


def _unquoted(text: str) -> str:
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if quoted else text


def _counted(session: Session) -> str:
    turns = len(session.bot.conversation.turns) // 2
    images = len(images_in(session.bot.conversation.turns))
    return f"{turns} message{'' if turns == 1 else 's'} with answers{_with_images(images)}"


def _with_images(number: int) -> str:
    return f" ({number} image{'' if number == 1 else 's'})" if number else ""


def _one_line(text: str, most: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]}..."


COMMANDS = {
    "/help": ChatCommand("", "Show this list.", _help),
    "/clear": ChatCommand("", "Forget the conversation; the system prompt stays.", _clear),
    "/undo": ChatCommand("", "Drop the last message and its answer.", _undo),
    "/retry": ChatCommand("", "Answer the last message again.", _retry),
    "/image": ChatCommand("[FILE ...]", 'Attach images to the next message; "" drops them.', _image),
    "/system": ChatCommand("[TEXT]", 'Show or set the system prompt; "" removes it.', _system),
    "/set": ChatCommand("[NAME VALUE]", "Show the settings, or change one.", _set),
    "/save": ChatCommand("FILE", "Save the conversation as JSON.", _save),
    "/load": ChatCommand("FILE", "Go on with a saved conversation.", _load),
    "/stats": ChatCommand("", "Show tokens, steps, speed and accepted drafts so far.", _stats),
    "/plain": ChatCommand("[on|off]", "Switch plain decoding, one token per forward.", _plain),
    "/compare": ChatCommand("", "Answer the last message plain and with lookahead.", _compare),
    "/bye": ChatCommand("", "Leave, as Ctrl-D does.", _bye),
}
