"""From messages to the text of a prompt, by a chat template. Knows no tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lade.applications.serve.errors import APIError, bad, one_line
from lade.applications.serve.fields import Json
from lade.applications.serve.tools import told

CONTENT = "a text that no template has by itself"


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
        lines = [line | {"content": _parts(line["content"])} for line in lines]
    try:
        return str(owner.apply_chat_template(lines, tools=given, chat_template=template, tokenize=False, **options))
    except Exception as error:  # a template is a program that comes with the model
        roles = ", ".join(str(message["role"]) for message in messages)
        raise bad("messages", f"ones that the model's chat template takes ({one_line(error)})", roles) from error


def reads_parts_alone(owner: Any) -> bool:
    """Whether a chat template leaves out contents that are no lists of parts, as some of models that read images do.

    Args:
        owner: as of `rendered`.
    """
    message = {"role": "user", "content": CONTENT}
    try:
        shown = [CONTENT in rendered(owner, None, [message], (), {}, in_parts) for in_parts in (False, True)]
    except APIError:
        return False
    return shown == [False, True]


def characters_of(messages: Sequence[Json]) -> int:
    """How long the texts of messages are together."""
    return sum(len(part.get("text", "")) for message in messages for part in _parts(message["content"]))


def _parts(content: str | list[Json]) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
