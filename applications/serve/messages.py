"""The messages of a chat, and the functions that its answer may call."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, Tag, model_validator

from lade.applications.serve.fields import NULL, WHOLE, Fields, Json, NotBuilt, Text, all_of, by_type, either, where
from lade.applications.serve.images import ImageFields, ImagePart, without

MOST_TOOLS = 128
SOME = {"type": "array", "minItems": 1}


class TextPart(Fields):
    """A text as a part of a message."""

    type: Literal["text", "input_text", "output_text"]
    text: Text
    # They change nothing here; earlier answers have them.
    annotations: Any = None
    logprobs: Any = None
    cache_control: Any = None

    def for_chat(self) -> Json:
        return {"type": "text", "text": self.text}


TEXTS = dict.fromkeys(("text", "input_text", "output_text"), "TextPart")  # for `by_type`
Content = Text | Annotated[list[TextPart], Field(min_length=1)]
ChatPart = Annotated[
    Annotated[TextPart, Tag("TextPart")] | Annotated[ImagePart, Tag("ImagePart")],
    by_type(TEXTS | {"image_url": "ImagePart"}),
]
ChatContent = Text | Annotated[list[ChatPart], Field(min_length=1)]
READERS = ("user", "tool")  # roles whose messages may have images


class CalledFunction(Fields):
    name: Text
    arguments: Text
    parsed_arguments: Any = None  # of OpenAI's package, from the same text


class Call(Fields):
    """A call that the model made earlier."""

    id: Text
    type: Literal["function"]
    function: CalledFunction
    index: Annotated[int, WHOLE] | None = None


class Function(Fields):
    name: Annotated[str, Field(pattern="^[a-zA-Z0-9_.-]{1,64}$")]
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Fields):
    type: Literal["function"]
    function: Function


class NamedFunction(Fields):
    name: Text


class NamedTool(Fields):
    """The function that the answer must call."""

    type: Literal["function"]
    function: NamedFunction

    @property
    def names(self) -> set[str]:
        return {self.function.name}


class AllowedTools(Fields):
    mode: Literal["auto", "required"]
    tools: Annotated[list[Tool], Field(min_length=1, max_length=MOST_TOOLS)]


class AllowedChoice(Fields):
    """The functions that the answer may call; where it need not call one, the model is told of no others."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools

    @property
    def names(self) -> set[str]:
        return {tool.function.name for tool in self.allowed_tools.tools}


ToolChoice = (
    Literal["none", "auto", "required"]
    | Annotated[
        Annotated[NamedTool, Tag("NamedTool")] | Annotated[AllowedChoice, Tag("AllowedChoice")],
        by_type({"function": "NamedTool", "allowed_tools": "AllowedChoice"}),
    ]
)


class Message(Fields):
    model_config = ConfigDict(
        json_schema_extra=all_of(
            either(where("content", content={"not": NULL}), where("tool_calls", tool_calls=SOME)),
            either(where(role={"const": "assistant"}), where(tool_calls={"anyOf": [NULL, {"maxItems": 0}]})),
            either(where(role={"enum": list(READERS)}), without("image_url")),
        )
    )
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: ChatContent | None = None
    name: Text | None = None
    tool_call_id: Text | None = None
    refusal: NotBuilt = None
    audio: NotBuilt = None
    function_call: NotBuilt = None
    reasoning_content: NotBuilt = None
    tool_calls: Annotated[list[Call], Field(max_length=MOST_TOOLS)] | None = None
    # They change nothing here; earlier answers have them.
    annotations: Any = None
    parsed: Any = None
    cache_control: Any = None

    @model_validator(mode="after")
    def _says_something(self) -> Message:
        if self.content is None and not self.tool_calls:
            raise ValueError("must have content, got none")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("must have tool_calls only where role is 'assistant'")
        if self.role not in READERS and has_images(self.content):
            raise ValueError("must have images only where role is 'user' or 'tool'")
        return self

    @property
    def told(self) -> str | list[Json]:
        """The content as chat templates read it: a text, or with images texts and the places of images."""
        return _runs(self.content) if has_images(self.content) else joined(self.content)


class Prediction(Fields):
    """A text that the answer may repeat, such as the file that it changes."""

    type: Literal["content"]
    content: Content


def joined(content: Any) -> str:
    """The text of a message's content."""
    return content if isinstance(content, str) else "".join(part.text for part in content or [])


def has_images(content: Any) -> bool:
    return isinstance(content, list) and any(isinstance(part, ImageFields) for part in content)


def as_chat(content: Any) -> str | list[Json]:
    """A content of another endpoint as chats have it: a text, or parts where it has images."""
    return [part.for_chat() for part in content] if has_images(content) else joined(content)


def _runs(content: Any) -> list[Json]:
    """Texts, each as long as no image cuts it, and the places of images."""
    found = list[Json]()
    for are_images, run in groupby(content, lambda part: isinstance(part, ImageFields)):
        parts = list(run)
        found += [{"type": "image"} for _ in parts] if are_images else [{"type": "text", "text": joined(parts)}]
    return found
