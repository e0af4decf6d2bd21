"""The blocks of messages: texts, calls of tools and their results, turned into the messages of a chat."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, Tag, model_validator

from lade.applications.serve.fields import Fields, Json, Text, all_of, by_type, either, where
from lade.applications.serve.images import ImageBlock, without
from lade.applications.serve.messages import TEXTS, TextPart, as_chat

Kind = TypeVar("Kind", bound=Fields)


class TextBlock(Fields):
    """A text as a part of a message; documents are not taken."""

    type: Literal["text"]
    text: Text
    # They change nothing here.
    cache_control: Any = None
    citations: Any = None

    def for_chat(self) -> Json:
        return {"type": "text", "text": self.text}


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


ResultPart = Annotated[
    Annotated[TextPart, Tag("TextPart")] | Annotated[ImageBlock, Tag("ImageBlock")],
    by_type(TEXTS | {"image": "ImageBlock"}),
]


class ToolResultBlock(Fields):
    """What a tool gave."""

    type: Literal["tool_result"]
    tool_use_id: Text
    content: Text | Annotated[list[ResultPart], Field(min_length=1)] | None = None
    # They change nothing here.
    is_error: Any = None
    cache_control: Any = None

    def message(self) -> Json:
        """The message of a chat that says the same."""
        return {"role": "tool", "content": as_chat(self.content), "tool_call_id": self.tool_use_id}


class ThinkingBlock(Fields):
    """What another model thought; the model is not told."""

    model_config = ConfigDict(extra="allow")
    type: Literal["thinking", "redacted_thinking"]


Block = Annotated[
    Annotated[TextBlock, Tag("TextBlock")]
    | Annotated[ImageBlock, Tag("ImageBlock")]
    | Annotated[ToolUseBlock, Tag("ToolUseBlock")]
    | Annotated[ToolResultBlock, Tag("ToolResultBlock")]
    | Annotated[ThinkingBlock, Tag("ThinkingBlock")],
    by_type(
        {
            "text": "TextBlock",
            "image": "ImageBlock",
            "tool_use": "ToolUseBlock",
            "tool_result": "ToolResultBlock",
            "thinking": "ThinkingBlock",
            "redacted_thinking": "ThinkingBlock",
        }
    ),
]


class Turn(Fields):
    """One message. Only the assistant calls tools, and only the user has results and images."""

    model_config = ConfigDict(
        json_schema_extra=all_of(
            either(where(role={"const": "assistant"}), without("tool_use")),
            either(where(role={"const": "user"}), without("tool_result")),
            either(where(role={"const": "user"}), without("image")),
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
        if self.role != "user" and self._of(ImageBlock):
            raise ValueError("must have blocks of the type 'image' only where role is 'user'")
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
                yield self._message([block for block in blocks if isinstance(block, TextBlock | ImageBlock)])

    def _message(self, blocks: Sequence[TextBlock | ImageBlock]) -> Json:
        return {"role": self.role, "content": as_chat(self.content if isinstance(self.content, str) else blocks)}

    def _calls(self) -> Json:
        calls = [block.call() for block in self._of(ToolUseBlock)]
        return {"tool_calls": calls} if calls else {}

    def _of(self, kind: type[Kind]) -> list[Kind]:
        """The blocks of a kind."""
        return [] if isinstance(self.content, str) else [block for block in self.content if isinstance(block, kind)]
