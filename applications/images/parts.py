"""Contents of messages as lists of parts, some of which hold an image as a data URL. Knows no pixels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Json = dict[str, Any]

HEAD = "^data:image/(png|jpe?g|webp|gif);base64,"  # of a data URL
CONTENT = "a text that no template has by itself"


def parts(content: str | list[Json]) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def in_parts(messages: Sequence[Json]) -> list[Json]:
    """All contents as lists of parts, as templates of models that read images have them."""
    return [message | {"content": parts(message["content"])} for message in messages]


def reads_parts_alone(rendered: Callable[[list[Json]], str]) -> bool:
    """Whether a chat template leaves out contents that are no lists of parts, as some of models that read images do.

    Args:
        rendered: the text of messages by the template; nothing where it refuses them.
    """
    messages: list[Json] = [{"role": "user", "content": CONTENT}]
    return CONTENT not in rendered(messages) and CONTENT in rendered(in_parts(messages))
