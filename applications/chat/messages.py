"""Messages as chat templates and OpenAI's API have them: texts, and of the user's also images in data URLs.

Knows no pixels and no tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from lade.applications.images.parts import HEAD, Json, parts

Message = dict[str, Any]  # role, and content: a text, or parts


def user_message(text: str, images: Sequence[str] = ()) -> Message:
    """What a user sends: images, as data URLs, stand before the text."""
    shown = [{"type": "image_url", "image_url": {"url": url}} for url in images]
    return {"role": "user", "content": [*shown, *parts(text)] if shown else text}


def text_of(message: Message) -> str:
    return "".join(part["text"] for part in parts(message["content"]) if part["type"] == "text")


def images_in(messages: Sequence[Message]) -> list[str]:
    """The data URLs of all images, in order."""
    found = [part for message in messages for part in parts(message["content"])]
    return [part["image_url"]["url"] for part in found if part["type"] == "image_url"]


def with_places(messages: Sequence[Message]) -> list[Message]:
    """The messages with a place for each image, as chat templates have them."""
    return [message | {"content": _with_places(message["content"])} for message in messages]


def _with_places(content: str | list[Json]) -> str | list[Json]:
    if isinstance(content, str):
        return content
    return [{"type": "image"} if part["type"] == "image_url" else part for part in content]


def is_message(found: Any) -> bool:
    """Whether a value is a message that has a role and a content, and an image only where it is the user's."""
    if not isinstance(found, dict) or not isinstance(found.get("role"), str):
        return False
    content = found.get("content")
    if isinstance(content, list) and found["role"] == "user":
        return all(_is_text(part) or _is_image(part) for part in content)
    return isinstance(content, str)


def _is_text(part: Any) -> bool:
    return _has(part, "text") and isinstance(part.get("text"), str)


def _is_image(part: Any) -> bool:
    url = part["image_url"].get("url") if _has(part, "image_url") and isinstance(part.get("image_url"), dict) else None
    return isinstance(url, str) and re.match(HEAD, url) is not None


def _has(part: Any, kind: str) -> bool:
    return isinstance(part, dict) and part.get("type") == kind
