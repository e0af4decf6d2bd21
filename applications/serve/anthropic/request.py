"""The bodies of /v1/messages and /v1/messages/count_tokens, turned into the chat that has the same answer."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field, Tag, WithJsonSchema

from lade.applications.serve.anthropic.blocks import TextBlock, Turn
from lade.applications.serve.fields import NULL, WHOLE, Fields, Json, Text, by_type, either, where
from lade.applications.serve.messages import MOST_TOOLS
from lade.applications.serve.schema import MOST_STOPS, LadeOptions
from lade.applications.serve.shapes import ShortText
from lade.applications.serve.translated import Translated
from lade.base.shown import shown

OWN = where("name", "input_schema", type={"enum": [None, "custom"]})
FREE = where(tool_choice=either(NULL, where(type={"enum": ["auto", "none"]})))
CALLED = either(FREE, where("tools", tools={"type": "array", "contains": OWN}))
CHOICES = {"auto": "auto", "any": "required", "none": "none"}  # of tools, as chats have them


class CustomTool(Fields):
    """A function that the answer may call."""

    type: Literal["custom"] | None = None
    name: Annotated[str, Field(pattern="^[a-zA-Z0-9_.-]{1,64}$")]
    description: Text | None = None
    input_schema: dict[str, Any]
    # They change nothing here.
    cache_control: Any = None
    eager_input_streaming: Any = None
    strict: Any = None

    def function(self) -> Json:
        """The function as chats have it."""
        own = {"name": self.name, "description": self.description, "parameters": self.input_schema}
        return {"type": "function", "function": own}


class OtherTool(Fields):
    """A tool that Anthropic runs itself: the model is not told of it, and so does not call it."""

    model_config = ConfigDict(extra="allow")
    type: Annotated[Text, Field(json_schema_extra={"not": {"const": "custom"}})]


AnyTool = Annotated[
    Annotated[CustomTool, Tag("CustomTool")] | Annotated[OtherTool, Tag("OtherTool")],
    by_type({"custom": "CustomTool"}, untyped="CustomTool", others="OtherTool"),
]


class OutputFormat(Fields):
    """JSON that keeps to a schema."""

    type: Literal["json_schema"]
    definition: dict[str, Any] = Field(alias="schema")


class OutputConfig(Fields):
    format: OutputFormat | None = None
    # They change nothing here.
    effort: Any = None
    task_budget: Any = None


class ToolChoice(Fields):
    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: Any = None  # changes nothing here


class ChosenTool(Fields):
    """The function that the answer must call."""

    type: Literal["tool"]
    name: Text
    disable_parallel_tool_use: Any = None  # changes nothing here


class ThreadError(ValueError):
    """Anthropic's packages send the whole conversation where an error has these details."""

    details: ClassVar[Json] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


def _unthreaded(value: Any) -> Any:
    if value is not None:
        raise ThreadError(f"must be left out, since the server keeps no conversations, got {shown(value)}")
    return value


Thread = Annotated[Any, AfterValidator(_unthreaded), WithJsonSchema(NULL)]


class CountRequest(Translated):
    """The body of /v1/messages/count_tokens."""

    NAMES: ClassVar = {
        "response_format.json_schema.schema": "output_config.format.schema",
        "response_format": "output_config.format",
    }
    model_config = ConfigDict(json_schema_extra=CALLED)
    model: Text | None = None
    messages: Annotated[list[Turn], Field(min_length=1)]
    system: Text | list[TextBlock] | None = None
    tools: Annotated[list[AnyTool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: Annotated[ToolChoice | ChosenTool, Field(discriminator="type")] | None = None
    output_config: OutputConfig | None = None
    # They change nothing here.
    cache_control: Any = None
    context_management: Any = None
    thinking: Any = None

    def chat_fields(self) -> Json:
        messages = [message for turn in self.messages for message in turn.messages()]
        if self.system is not None:
            text = self.system if isinstance(self.system, str) else "\n".join(part.text for part in self.system)
            messages.insert(0, {"role": "system", "content": text})
        fields = {"messages": messages, "response_format": self._format(), "model": self.model}
        functions = [tool.function() for tool in self.tools or [] if isinstance(tool, CustomTool)]
        return fields | {"tools": functions, "tool_choice": self._tool_choice()}

    def _format(self) -> Json | None:
        wanted = None if self.output_config is None else self.output_config.format
        if wanted is None:
            return None
        return {"type": wanted.type, "json_schema": {"name": "answer", "schema": wanted.definition}}

    def _tool_choice(self) -> str | Json | None:
        if isinstance(self.tool_choice, ChosenTool):
            return {"type": "function", "function": {"name": self.tool_choice.name}}
        return None if self.tool_choice is None else CHOICES[self.tool_choice.type]


class MessagesRequest(CountRequest):
    """The body of /v1/messages."""

    max_tokens: Annotated[int, Field(ge=1), WHOLE]
    stop_sequences: Annotated[list[ShortText], Field(max_length=MOST_STOPS)] | None = None
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=1)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: Annotated[int, Field(ge=0, le=1 << 30), WHOLE] | None = None
    lade: LadeOptions = LadeOptions()
    thread: Thread = None
    # They change nothing here.
    metadata: Any = None
    service_tier: Any = None

    def chat_fields(self) -> Json:
        shared = self.model_dump(include={"max_tokens", "stream", "temperature", "top_p", "top_k", "lade"})
        return super().chat_fields() | shared | {"stop": self.stop_sequences or None}
