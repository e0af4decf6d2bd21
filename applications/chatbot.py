"""The original's script, `python applications/chatbot.py --model_path PATH --debug --chat`, with its flags.

It differs from `lade chat` as the original does: USE_LADE=1 switches lookahead on, an answer has 128 tokens at most,
and without --chat it answers one built-in question.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import click

from lade.applications.chat import command as chatting
from lade.applications.exits import Command, switch

QUESTION = "Which methods did Socrates employ to challenge the prevailing thoughts of his time?"
NEW_TOKENS = 128


class Question:
    """A reader of the built-in question."""

    def __init__(self) -> None:
        self._asked = False

    def read(self) -> str:
        if self._asked:
            raise EOFError
        self._asked = True
        click.echo(f"User: {QUESTION}")
        return QUESTION


def answer(*, model: str | None, model_path: str | None, chat: bool, **options: Any) -> None:
    """Chat with a model; USE_LADE=1 decodes with lookahead, COLOR_PRINT=1 colours the accepted draft tokens."""
    options["lookahead_off"] = options["lookahead_off"] or not switch("USE_LADE")
    path = model or model_path or chatting.default_model()
    chatting.chat(path, reader=None if chat else Question(), chat=chat, **options)


def parameters() -> list[click.Parameter]:
    """Those of `lade chat`, with the original's default for the number of new tokens."""
    found = [copy(each) for each in chatting.command.params]
    for each in found:
        if each.name == "max_new_tokens":
            each.default = NEW_TOKENS
    return found


command = Command("chatbot", params=parameters(), callback=answer, help=answer.__doc__)

if __name__ == "__main__":
    command()
