"""Reads messages: from a terminal with line editing, history and pastes, or line by line from a pipe.

A message of several lines is pasted, or begins and ends with three double quotes. Knows no model.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from lade.applications.chat.commands import QUOTE

if TYPE_CHECKING:
    from prompt_toolkit.history import History
    from prompt_toolkit.input import Input
    from prompt_toolkit.output import Output

PROMPT = "User: "


class Reader(Protocol):
    def read(self) -> str:
        """The next message, blank ones included. EOFError at the end."""
        ...


class LineReader:
    """Reads lines from stdin; a pipe does not echo them, so they are printed."""

    def read(self) -> str:
        text = self._line(PROMPT)
        while is_open(text):
            with suppress(EOFError):  # the end of the input ends the block
                text += "\n" + self._line("")
                continue
            break
        return message_in(text)

    def _line(self, prompt: str) -> str:
        line = input(prompt)
        if not sys.stdin.isatty():
            click.echo(line)
        return line


class TerminalReader:
    """Reads messages with prompt_toolkit. Enter sends one, Alt-Enter begins a new line; a paste stays one message.

    Ctrl-C drops the line and is a KeyboardInterrupt.

    Args:
        history: the file of earlier messages; `None` keeps them in memory.
        words: completed at the beginning of a line.
    """

    def __init__(
        self,
        history: Path | None,
        words: Iterable[str] = (),
        *,
        source: Input | None = None,
        output: Output | None = None,
    ) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter

        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            key_bindings=_bindings(),
            history=_history(history),
            completer=WordCompleter(list(words), sentence=True),
            complete_while_typing=False,
            enable_history_search=True,
            prompt_continuation="",
            input=source,
            output=output,
        )

    def read(self) -> str:
        return message_in(self._session.prompt())


def is_open(text: str) -> bool:
    """Whether three double quotes began a block that they have not ended."""
    text = text.strip()
    return text.startswith(QUOTE) and (len(text) < 2 * len(QUOTE) or not text.endswith(QUOTE))


def message_in(text: str) -> str:
    """The message without the quotes of a block and without empty lines around it; its indentation stays."""
    block = text.strip()
    if block.startswith(QUOTE):
        text = block.removeprefix(QUOTE).removesuffix(QUOTE)
    return text.strip("\r\n").rstrip()


def history_file() -> Path | None:
    """Where the messages of earlier chats are kept, in the user's own folder for such files; `None` without a home."""
    from platformdirs import user_state_path

    with suppress(RuntimeError):
        return user_state_path("lade", appauthor=False) / "chat-history"
    return None


def _bindings() -> Any:
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    found = KeyBindings()

    @found.add("enter")
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @found.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return found


def _history(path: Path | None) -> History:
    """The file's history, readable by the user alone; in memory where it cannot be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    if path is not None:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
            return FileHistory(str(path))
    return InMemoryHistory()
