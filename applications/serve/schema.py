"""What requests may hold: the fields of OpenAI's API that the server takes, with their bounds.

Fields that change nothing here are taken and ignored; fields that would change the answer and are not built are
refused by name, as is every unknown one.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema, model_validator

MOST_CHOICES, MOST_STOPS, MOST_TOP, LONGEST_STOP, MOST_TOOLS = 128, 16, 20, 500, 128
SEEDS = 1 << 63


def _text(value: str) -> str:
    """JSON can hold half a character, which no tokenizer takes."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError("must be text in Unicode, got a surrogate without its other half") from error
    return value


def _nothing(value: Any) -> Any:
    if value:
        raise ValueError("must be left out, since the server does not have it")
    return value


Text = Annotated[str, AfterValidator(_text)]
StopText = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP), AfterValidator(_text)]
Stops = StopText | Annotated[list[StopText], Field(max_length=MOST_STOPS)]
NotBuilt = Annotated[Any, AfterValidator(_nothing), WithJsonSchema({"enum": [None, False, [], ""]})]
TokenId = Annotated[int, Field(ge=0)]


class Fields(BaseModel):
    """An object of a request: types are not converted, and no other fields are taken."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class LadeOptions(Fields):
    """What is lade's own.

    Attributes:
        speculation: whether drafts are used; the text is the same.
        steps: whether each chunk of a stream tells how many tokens its step emitted.
    """

    speculation: bool = True
    steps: bool = False


class StreamOptions(Fields):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class TextFormat(Fields):
    type: Literal["text"]


class ObjectFormat(Fields):
    """Any JSON object."""

    type: Literal["json_object"]


class SchemaFields(Fields):
    name: Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    definition: dict[str, Any] = Field(alias="schema")
    description: Text | None = None
    strict: bool | None = None


class SchemaFormat(Fields):
    """JSON that keeps to a schema, whether or not `strict` is set."""

    type: Literal["json_schema"]
    json_schema: SchemaFields


ResponseFormat = Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")]


class Asked(Fields):
    """The fields that all endpoints share."""

    model: Text | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    stream: bool | None = None
    lade: LadeOptions = LadeOptions()
    # They change nothing here.
    user: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None


class Sampling(Asked):
    """The fields that chats and completions share."""

    top_k: int | None = Field(None, ge=-1, le=1 << 30)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-SEEDS, lt=SEEDS)
    stop: Stops | None = None
    n: int | None = Field(None, ge=1, le=MOST_CHOICES)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    metadata: Any = None  # changes nothing here

    @model_validator(mode="after")
    def _streams(self) -> Sampling:
        if self.stream_options is not None and not self.stream:
            raise ValueError("must have stream_options only where stream is true")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class TextPart(Fields):
    """A part of a message; images and sound are not taken."""

    type: Literal["text", "input_text", "output_text"]
    text: Text
    annotations: Any = None


Content = Text | Annotated[list[TextPart], Field(min_length=1)]


class CalledFunction(Fields):
    name: Text
    arguments: Text


class Call(Fields):
    """A call that the model made earlier."""

    id: Text
    type: Literal["function"]
    function: CalledFunction
    index: int | None = None


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


class Message(Fields):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: Text | None = None
    tool_call_id: Text | None = None
    refusal: NotBuilt = None
    audio: NotBuilt = None
    function_call: NotBuilt = None
    tool_calls: Annotated[list[Call], Field(max_length=MOST_TOOLS)] | None = None

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


class ChatRequest(Sampling):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MOST_TOP)
    prediction: Prediction | None = None
    tools: Annotated[list[Tool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    functions: NotBuilt = None
    audio: NotBuilt = None
    modalities: list[Literal["text"]] | None = None
    web_search_options: NotBuilt = None
    # They change nothing here.
    parallel_tool_calls: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None

    @model_validator(mode="after")
    def _top(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("must have top_logprobs only where logprobs is true")
        return self

    @model_validator(mode="after")
    def _chooses(self) -> ChatRequest:
        names, choice = [tool.function.name for tool in self.tools or []], self.tool_choice
        if isinstance(choice, NamedTool) and choice.function.name not in names:
            raise ValueError("must have a tool_choice that names one of tools")
        if choice == "required" and not names:
            raise ValueError("must have tools where tool_choice is 'required'")
        if self.must_call and self.response_format is not None and self.response_format.type != "text":
            raise ValueError("must have either response_format or a tool_choice that forces a call")
        return self

    @property
    def functions_offered(self) -> list[dict[str, Any]]:
        """The functions that the answer may call."""
        offered = [] if self.tool_choice == "none" else self.tools or []
        return [tool.function.model_dump(exclude_none=True, exclude={"strict"}) for tool in offered]

    @property
    def must_call(self) -> list[dict[str, Any]]:
        """The functions of which the answer must call one; none where it may do otherwise."""
        if isinstance(self.tool_choice, NamedTool):
            wanted = self.tool_choice.function.name
            return [each for each in self.functions_offered if each["name"] == wanted]
        return self.functions_offered if self.tool_choice == "required" else []

    @property
    def asked_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def top(self) -> int | None:
        """The most likely tokens that are told at each place; `None` where no log probabilities are asked for."""
        return (self.top_logprobs or 0) if self.logprobs else None


Prompt = (
    Text
    | Annotated[list[TokenId], Field(min_length=1)]
    | Annotated[list[Text], Field(min_length=1, max_length=MOST_CHOICES)]
    | Annotated[list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1, max_length=MOST_CHOICES)]
)


class CompletionRequest(Sampling):
    """The body of /v1/completions."""

    prompt: Prompt
    max_tokens: int | None = Field(None, ge=0)
    logprobs: int | None = Field(None, ge=0, le=MOST_TOP)
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1, le=MOST_CHOICES)
    suffix: NotBuilt = None

    @model_validator(mode="after")
    def _fits(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ValueError("must have best_of equal to n, since the server does not choose among answers")
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("must have max_tokens of at least 1 where echo is not true")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        prompt = self.prompt
        if isinstance(prompt, str) or isinstance(prompt[0], int):
            return [prompt]
        return list(prompt)


def joined(content: Content | None) -> str:
    """The text of a message's content."""
    return content if isinstance(content, str) else "".join(part.text for part in content or [])
