"""The blocks of messages: texts, calls of tools and their results, turned into the messages of a chat."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, Tag, model_validator

from lade.applications.serve.fields import Fields, Json, Text, all_of, by_type, either, where
from lade.applications.serve.messages import Content, joined

Kind = TypeVar("Kind", bound=Fields)


class TextBlock(Fields):
    """A part of a message; images and documents are not taken."""

    type: Literal["text"]
    text: Text
    # They change nothing here.
    cache_control: Any = None
    citations: Any = None


class ToolUseBlock(Fields):
    """A call that the model made earlier."""

    type: Literal["tool_use"]
    id: Text
    name: Text
    input: dict[str, Any]
    # They change nothing here.
    cache_control: Any = None
    caller: Any = None

    def call(self) -> Json:
        """The call as chats have it."""
        arguments = json.dumps(self.input, ensure_ascii=False)
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}


class ToolResultBlock(Fields):
    """What a tool gave."""

    type: Literal["tool_result"]
    tool_use_id: Text
    content: Content | None = None
    # They change nothing here.
    is_error: Any = None
    cache_control: Any = None

    def message(self) -> Json:
        """The message of a chat that says the same."""
        return {"role": "tool", "content": joined(self.content), "tool_call_id": self.tool_use_id}


class ThinkingBlock(Fields):
    """What another model thought; the model is not told."""

    model_config = ConfigDict(extra="allow")
    type: Literal["thinking", "redacted_thinking"]


Block = Annotated[
    Annotated[TextBlock, Tag("TextBlock")]
    | Annotated[ToolUseBlock, Tag("ToolUseBlock")]
    | Annotated[ToolResultBlock, Tag("ToolResultBlock")]
    | Annotated[ThinkingBlock, Tag("ThinkingBlock")],
    by_type(
        {
            "text": "TextBlock",
            "tool_use": "ToolUseBlock",
            "tool_result": "ToolResultBlock",
            "thinking": "ThinkingBlock",
            "redacted_thinking": "ThinkingBlock",
        }
    ),
]


def _without(kind: str) -> Json:
    """The schema of a message without blocks of a type."""
    other = where(type={"not": {"const": kind}})
    return where(content=either({"type": "string"}, {"type": "array", "items": other}))


class Turn(Fields):
    """One message. Only the assistant calls tools, and only the user has results."""

    model_config = ConfigDict(
        json_schema_extra=all_of(
            either(where(role={"const": "assistant"}), _without("tool_use")),
            either(where(role={"const": "user"}), _without("tool_result")),
        )
    )
    role: Literal["user", "assistant", "system"]
    content: Text | Annotated[list[Block], Field(min_length=1)]

    @model_validator(mode="after")
    def _has_its_own(self) -> Turn:
        if self.role != "assistant" and self._of(ToolUseBlock):
            raise ValueError("must have blocks of the type 'tool_use' only where role is 'assistant'")
        if self.role != "user" and self._of(ToolResultBlock):
            raise ValueError("must have blocks of the type 'tool_result' only where role is 'user'")
        return self

    def messages(self) -> Iterator[Json]:
        """The messages of a chat that say the same: a result is one of its own, what else stands together is one."""
        if isinstance(self.content, str) or self.role == "assistant":
            yield self._message(self._of(TextBlock)) | self._calls()
            return
        for is_result, blocks in groupby(self.content, lambda block: isinstance(block, ToolResultBlock)):
            if is_result:
                yield from (block.message() for block in blocks if isinstance(block, ToolResultBlock))
            else:
                yield self._message([block for block in blocks if isinstance(block, TextBlock)])

    def _message(self, blocks: Sequence[TextBlock]) -> Json:
        text = self.content if isinstance(self.content, str) else "".join(block.text for block in blocks)
        return {"role": self.role, "content": text}

    def _calls(self) -> Json:
        calls = [block.call() for block in self._of(ToolUseBlock)]
        return {"tool_calls": calls} if calls else {}

    def _of(self, kind: type[Kind]) -> list[Kind]:
        """The blocks of a kind."""
        return [] if isinstance(self.content, str) else [block for block in self.content if isinstance(block, kind)]
