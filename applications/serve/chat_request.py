"""The body of /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from lade.applications.serve.fields import NULL, WHOLE, NotBuilt, all_of, either, where
from lade.applications.serve.messages import SOME, AllowedChoice, Message, NamedTool, Prediction, ToolChoice
from lade.applications.serve.schema import FORMAT, MOST_TOP, STREAMED, TRUE, Sampling
from lade.applications.serve.templated import BEGUN, Templated

TOP = either(where(top_logprobs=NULL), where("logprobs", logprobs=TRUE))
FREE = where(tool_choice={"enum": [None, "none", "auto"]})
CALLED = either(FREE, where("tools", tools=SOME))


class ChatRequest(Templated, Sampling):
    """The body of /v1/chat/completions."""

    model_config = ConfigDict(json_schema_extra=all_of(STREAMED, TOP, CALLED, BEGUN))
    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1), WHOLE] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1), WHOLE] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP), WHOLE] | None = None
    prediction: Prediction | None = None
    tool_choice: ToolChoice | None = None
    functions: NotBuilt = None
    function_call: NotBuilt = None
    chat_template: NotBuilt = None
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
        names, choice = {tool.function.name for tool in self.tools or []}, self.tool_choice
        if isinstance(choice, NamedTool | AllowedChoice) and not choice.names <= names:
            raise ValueError("must have a tool_choice that names one of tools")
        if choice == "required" and not names:
            raise ValueError("must have tools where tool_choice forces a call")
        return self

    @property
    def grammars(self) -> list[str]:
        """A response format is that of a text, and an answer that must call has none."""
        if not self.must_call:
            return super().grammars
        return [*(each for each in super().grammars if each != FORMAT), "a tool_choice that forces a call"]

    @property
    def functions_offered(self) -> list[dict[str, Any]]:
        offered, choice = super().functions_offered, self.tool_choice
        if isinstance(choice, AllowedChoice):
            return [each for each in offered if each["name"] in choice.names]
        return [] if choice == "none" else offered

    @property
    def functions_told(self) -> list[dict[str, Any]]:
        """All of them, so that the prompt is the same, where a grammar keeps the answer to those that it may call."""
        return super().functions_offered if self.must_call else self.functions_offered

    @property
    def must_call(self) -> list[dict[str, Any]]:
        """The functions of which the answer must call one; none where it may do otherwise."""
        choice = self.tool_choice
        if isinstance(choice, NamedTool):
            return [each for each in self.functions_offered if each["name"] in choice.names]
        mode = choice.allowed_tools.mode if isinstance(choice, AllowedChoice) else choice
        return self.functions_offered if mode == "required" else []

    @property
    def asked_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def top(self) -> int | None:
        """The most likely tokens that are told at each place; `None` where no log probabilities are asked for."""
        return (self.top_logprobs or 0) if self.logprobs else None
