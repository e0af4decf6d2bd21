"""The items of the input: turns, earlier calls of functions and their results, turned into the messages of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, Tag, model_validator

from lade.applications.serve.fields import Fields, Json, Text, by_type, either, where
from lade.applications.serve.images import InputImagePart, without
from lade.applications.serve.messages import MOST_TOOLS, TEXTS, TextPart, as_chat, has_images

InputPart = Annotated[
    Annotated[TextPart, Tag("TextPart")] | Annotated[InputImagePart, Tag("InputImagePart")],
    by_type(TEXTS | {"input_image": "InputImagePart"}),
]
InputContent = Text | Annotated[list[InputPart], Field(min_length=1)]


class InputItem(Fields):
    """What the items share: fields of earlier answers that are taken and ignored."""

    id: Any = None
    status: Any = None

    def message(self) -> Json:
        """The message of a chat that says the same."""
        raise NotImplementedError


class MessageItem(InputItem):
    """One turn. Only the user has images."""

    model_config = ConfigDict(json_schema_extra=either(where(role={"const": "user"}), without("input_image")))
    role: Literal["system", "developer", "user", "assistant"]
    content: InputContent
    type: Literal["message"] | None = None
    phase: Any = None  # changes nothing here

    @model_validator(mode="after")
    def _has_its_own(self) -> MessageItem:
        if self.role != "user" and has_images(self.content):
            raise ValueError("must have images only where role is 'user'")
        return self

    def message(self) -> Json:
        return {"role": self.role, "content": as_chat(self.content)}


class CallItem(InputItem):
    """A call that the model made earlier."""

    type: Literal["function_call"]
    call_id: Text
    name: Text
    arguments: Text
    # They change nothing here.
    parsed_arguments: Any = None  # of OpenAI's package, from the same text
    caller: Any = None
    namespace: Any = None
    asynchronous: Any = Field(None, alias="async")

    def message(self) -> Json:
        function = {"name": self.name, "arguments": self.arguments}
        return {"role": "assistant", "tool_calls": [{"id": self.call_id, "type": "function", "function": function}]}


class ResultItem(InputItem):
    """What a function gave."""

    type: Literal["function_call_output"]
    call_id: Text
    output: InputContent
    caller: Any = None  # changes nothing here

    def message(self) -> Json:
        return {"role": "tool", "content": as_chat(self.output), "tool_call_id": self.call_id}


Item = Annotated[
    Annotated[MessageItem, Tag("MessageItem")]
    | Annotated[CallItem, Tag("CallItem")]
    | Annotated[ResultItem, Tag("ResultItem")],
    by_type(
        {"message": "MessageItem", "function_call": "CallItem", "function_call_output": "ResultItem"},
        untyped="MessageItem",
    ),
]


def messages_of(items: Sequence[InputItem]) -> list[Json]:
    """The messages of a chat; calls are a part of the assistant's message before them."""
    found: list[Json] = []
    for message in (item.message() for item in items):
        last: Json = found[-1] if found else {}
        calls = [*last.get("tool_calls", []), *message.get("tool_calls", [])]
        if "tool_calls" in message and last.get("role") == "assistant" and len(calls) <= MOST_TOOLS:
            last["tool_calls"] = calls
        else:
            found.append(message)
    return found
