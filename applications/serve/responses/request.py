"""The body of /v1/responses, turned into the chat that has the same answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, Tag

from lade.applications.serve.chat_request import FREE
from lade.applications.serve.fields import WHOLE, Fields, Json, NotBuilt, Text, by_type, either, where
from lade.applications.serve.messages import MOST_TOOLS, Function, NamedFunction
from lade.applications.serve.responses.items import Item, messages_of
from lade.applications.serve.schema import MOST_TOP, Decoding
from lade.applications.serve.shapes import ObjectFormat, SchemaFields, TextFormat
from lade.applications.serve.translated import Translated

FUNCTION = "function"
LOGPROBS = "message.output_text.logprobs"
CALLED = either(FREE, where("tools", tools={"type": "array", "contains": where("type", type={"const": FUNCTION})}))


class OutputSchema(SchemaFields):
    type: Literal["json_schema"]


class TextOptions(Fields):
    format: Annotated[TextFormat | ObjectFormat | OutputSchema, Field(discriminator="type")] | None = None
    verbosity: Any = None  # changes nothing here


class FunctionTool(Function):
    """A function that the answer may call."""

    type: Literal["function"]


class OtherTool(Fields):
    """A tool that OpenAI runs itself, or a group of tools: the model is not told of it, and so does not call it."""

    model_config = ConfigDict(extra="allow")
    type: Annotated[Text, Field(json_schema_extra={"not": {"const": FUNCTION}})]


ResponsesTool = Annotated[
    Annotated[FunctionTool, Tag("FunctionTool")] | Annotated[OtherTool, Tag("OtherTool")],
    by_type({FUNCTION: "FunctionTool"}, untyped="OtherTool", others="OtherTool"),
]


class ChosenTool(NamedFunction):
    """The function that the answer must call."""

    type: Literal["function"]


class AllowedChoice(Fields):
    """The functions that the answer may call, as chats have them."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionTool], Field(min_length=1, max_length=MOST_TOOLS)]


ToolChoice = (
    Literal["none", "auto", "required"]
    | Annotated[
        Annotated[ChosenTool, Tag("ChosenTool")] | Annotated[AllowedChoice, Tag("AllowedChoice")],
        by_type({FUNCTION: "ChosenTool", "allowed_tools": "AllowedChoice"}),
    ]
)


class ResponsesRequest(Translated, Decoding):
    """The body of /v1/responses."""

    NAMES: ClassVar = {
        "messages": "input",
        "response_format.json_schema.schema": "text.format.schema",
        "response_format": "text.format",
    }
    model_config = ConfigDict(json_schema_extra=CALLED)
    input: Text | Annotated[list[Item], Field(min_length=1)]
    instructions: Text | None = None
    max_output_tokens: Annotated[int, Field(ge=1), WHOLE] | None = None
    text: TextOptions | None = None
    tools: Annotated[list[ResponsesTool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP), WHOLE] | None = None
    metadata: dict[str, Any] | None = None
    # They would change the answer.
    previous_response_id: NotBuilt = None
    conversation: NotBuilt = None
    background: NotBuilt = None
    prompt: NotBuilt = None
    # They change nothing here.
    client_metadata: Any = None
    max_tool_calls: Any = None  # of tools that OpenAI runs
    parallel_tool_calls: Any = None
    reasoning: Any = None
    stream_options: Any = None
    truncation: Any = None

    def chat_fields(self) -> Json:
        messages = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else messages_of(self.input)
        if self.instructions is not None:
            messages.insert(0, {"role": "system", "content": self.instructions})
        fields = {
            "messages": messages,
            "response_format": self._format(),
            "max_completion_tokens": self.max_output_tokens,
            "logprobs": self.top_logprobs is not None or LOGPROBS in (self.include or []),
            "top_logprobs": self.top_logprobs,
            "tools": None if self.tools is None else _for_chat(self.tools),
            "tool_choice": self._tool_choice(),
        }
        return fields | self.model_dump(include=set(Decoding.model_fields))

    def _format(self) -> Json | None:
        wanted = None if self.text is None else self.text.format
        if not isinstance(wanted, OutputSchema):
            return None if wanted is None else {"type": wanted.type}
        return {"type": wanted.type, "json_schema": wanted.model_dump(by_alias=True, exclude={"type"})}

    def _tool_choice(self) -> str | Json | None:
        choice = self.tool_choice
        if isinstance(choice, AllowedChoice):
            return {"type": choice.type, choice.type: {"mode": choice.mode, "tools": _for_chat(choice.tools)}}
        return {"type": FUNCTION, "function": {"name": choice.name}} if isinstance(choice, ChosenTool) else choice


def _for_chat(tools: Sequence[Fields]) -> list[Json]:
    """The functions of a chat."""
    functions = [tool for tool in tools if isinstance(tool, FunctionTool)]
    return [{"type": FUNCTION, "function": tool.model_dump(exclude={"type"})} for tool in functions]
