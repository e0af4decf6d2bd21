"""The loop of a chat: reads messages and commands, writes answers, and survives what goes wrong with one of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeAlias

import click

from lade.applications.chat import commands
from lade.applications.chat.bot import Chatbot
from lade.applications.chat.interrupt import Interrupt
from lade.applications.chat.markdown import MarkdownWriter
from lade.applications.chat.reader import Reader
from lade.applications.chat.reply import Reply

Answering: TypeAlias = Callable[[Callable[[str], object], Callable[[], bool]], Reply | None]

LEAVE = "(Ctrl-D or /bye leaves)"


def write(text: str) -> None:
    """Directly to stdout: click.echo removes colours from a pipe, where --color asks for them."""
    sys.stdout.write(text)
    sys.stdout.flush()


class Session:
    """A chat.

    Args:
        model: the model's name.
        answering: what is written before an answer.
    """

    def __init__(self, bot: Chatbot, model: str, answering: str = "Assistant: ") -> None:
        self.bot, self.model, self.interrupt = bot, model, Interrupt()
        self._answering = answering

    def say(self, line: str) -> None:
        """A line to the user that is no answer."""
        click.echo(line)

    def run(self, reader: Reader) -> None:
        """Until the reader ends or the user leaves. Ctrl-C at a terminal's prompt drops the line."""
        while True:
            try:
                message = reader.read()
                if message.strip():
                    self.take(message)
            except (EOFError, commands.Bye):
                click.echo()
                return
            except KeyboardInterrupt:
                if not sys.stdin.isatty():
                    raise
                click.echo(LEAVE)

    def take(self, message: str) -> None:
        """Run a command, or answer a message; errors are told."""
        try:
            if commands.is_command(message):
                commands.run(self, message)
            else:
                self.answer(lambda write, stopped: self.bot.answer(message, write, stopped))
        except BrokenPipeError:  # nobody reads any more
            raise
        except (OSError, ValueError) as error:
            click.echo(f"({error})", err=True)

    def answer(self, answering: Answering) -> Reply | None:
        """Write an answer while it is decoded, until Ctrl-C stops it; then what is to know about it."""
        write(self._answering)
        try:
            with self.interrupt:
                reply = self._written(answering)
        finally:
            write("\n")
        if reply is not None:
            self._note(reply)
        return reply

    def _written(self, answering: Answering) -> Reply | None:
        def stopped() -> bool:
            return self.interrupt.asked

        if not self.bot.settings.markdown:
            return answering(write, stopped)
        shown = MarkdownWriter(sys.stdout)
        if self._answering:
            write("\n")
        try:
            return answering(shown.write, stopped)
        finally:
            shown.end()

    def _note(self, reply: Reply) -> None:
        if reply.cost.interrupted:
            kept = "" if reply.cost.tokens else " before its first token; the message is dropped"
            if kept and self.bot.attached:
                kept += ", its images stay attached"
            click.echo(f"(stopped{kept})", err=True)
        if reply.dropped:
            click.echo(f"(the model's positions are full: {reply.dropped} of the oldest turns dropped)", err=True)
        if self.bot.settings.stats and reply.cost.tokens:
            click.echo(reply.summary(), err=not self._answering)
