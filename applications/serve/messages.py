"""The messages of a chat, and the functions that its answer may call."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, Tag, model_validator

from lade.applications.serve.fields import NULL, WHOLE, Fields, NotBuilt, Text, all_of, by_type, either, where

MOST_TOOLS = 128
SOME = {"type": "array", "minItems": 1}


class TextPart(Fields):
    """A part of a message; images and sound are not taken."""

    type: Literal["text", "input_text", "output_text"]
    text: Text
    # They change nothing here; earlier answers have them.
    annotations: Any = None
    logprobs: Any = None
    cache_control: Any = None


Content = Text | Annotated[list[TextPart], Field(min_length=1)]


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
    """The functions that the answer may call; the model is told of no others."""

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
        )
    )
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
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
        return self

    @property
    def text(self) -> str:
        return joined(self.content)


class Prediction(Fields):
    """A text that the answer may repeat, such as the file that it changes."""

    type: Literal["content"]
    content: Content


def joined(content: Content | None) -> str:
    """The text of a message's content."""
    return content if isinstance(content, str) else "".join(part.text for part in content or [])
