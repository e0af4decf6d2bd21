"""The turns of a conversation, and the file that holds them. Knows no model and no terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lade.applications.chat.messages import Message, is_message
from lade.base.shown import shown
from lade.files.atomic import put_in_place
from lade.files.jsonobject import read_object
from lade.files.regularfile import MEBIBYTE, AbsentFileError, UnreadableFileError

MOST = 64 * MEBIBYTE  # of a saved conversation
MESSAGES = "messages"


@dataclass
class Conversation:
    """A system prompt, and the user's and the model's turns in alternation; the model's is the last one."""

    system: str | None = None
    turns: list[Message] = field(default_factory=list)

    @property
    def messages(self) -> list[Message]:
        """All of it, as a chat template takes it."""
        return [*self.with_system(self.turns)]

    def with_system(self, turns: Sequence[Message]) -> list[Message]:
        return [*([{"role": "system", "content": self.system}] if self.system else []), *turns]

    def undo(self) -> Message | None:
        """Drop the last message and its answer. Returns the message; `None` where there is none."""
        if not self.turns:
            return None
        message = self.turns[-2]
        del self.turns[-2:]
        return message


def save(path: Path, conversation: Conversation, model: str) -> None:
    """Write a conversation as JSON: `model`, and `messages` with `role` and `content`.

    Raises:
        ValueError: another kind of file has this name, or the conversation is larger than `load` reads.
        OSError: it cannot be written.
    """
    try:
        load(path)
    except AbsentFileError:
        pass
    except UnreadableFileError as error:
        raise ValueError(f"FILE must be new or hold a conversation, got {path}, which holds something else") from error
    content = json.dumps({"model": model, MESSAGES: conversation.messages}, indent=1, ensure_ascii=False)
    written = content.encode(errors="replace")
    if len(written) > MOST:
        raise ValueError(f"FILE must have at most {MOST:,} bytes, got a conversation of {len(written):,}")
    put_in_place(path, written)


def load(path: Path) -> Conversation:
    """The conversation in a file. UnreadableFileError says what is wrong with it."""
    found = read_object(path, MOST, path).get(MESSAGES)
    if not isinstance(found, list) or not all(is_message(message) for message in found):
        raise UnreadableFileError(f"{path}: {MESSAGES} must be a list of objects with role and content")
    system = found.pop(0)["content"] if found and found[0]["role"] == "system" else None
    roles = [message["role"] for message in found]
    if roles != ["user", "assistant"] * (len(roles) // 2):
        raise UnreadableFileError(f"{path}: the roles must be user and assistant in turn, got {shown(roles)}")
    return Conversation(system, [{"role": each["role"], "content": each["content"]} for each in found])
