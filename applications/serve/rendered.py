"""From messages to the text of a prompt, by a chat template. Knows no tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lade.applications.images.parts import in_parts as as_parts
from lade.applications.images.parts import parts
from lade.applications.serve.errors import bad
from lade.applications.serve.fields import Json
from lade.applications.serve.tools import told
from lade.base.shown import one_line


def rendered(
    owner: Any,
    template: str | None,
    messages: Sequence[Json],
    tools: Sequence[Json],
    options: Mapping[str, Any],
    in_parts: bool = False,
) -> str:
    """The text of a conversation.

    Args:
        owner: the tokenizer or processor whose `apply_chat_template` makes it.
        template: another one than the owner's own.
        tools: functions that the answer may call; a message tells of them where the template does not read them.
        options: arguments of `apply_chat_template`.
        in_parts: whether all contents are given as lists of parts, as templates of models that read images have them.

    Raises:
        APIError: the template does not take the messages.
    """
    shows = "tools" in (owner.chat_template or "")
    lines = [told(tools), *messages] if tools and not shows else list(messages)
    given = [{"type": "function", "function": tool} for tool in tools] if tools and shows else None
    if in_parts:
        lines = as_parts(lines)
    try:
        return str(owner.apply_chat_template(lines, tools=given, chat_template=template, tokenize=False, **options))
    except Exception as error:  # a template is a program that comes with the model
        roles = ", ".join(str(message["role"]) for message in messages)
        raise bad("messages", f"ones that the model's chat template takes ({one_line(error)})", roles) from error


def characters_of(messages: Sequence[Json]) -> int:
    """How long the texts of messages are together."""
    return sum(len(part.get("text", "")) for message in messages for part in parts(message["content"]))
