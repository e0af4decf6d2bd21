"""What requests may hold: the fields of OpenAI's API that the server takes, with their bounds.

Fields that change nothing here are taken and ignored; fields that would change the answer and are not built are
refused by name, as is every unknown one.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from lade.applications.serve.fields import (
    NULL,
    UNICODE,
    WHOLE,
    Always,
    Fields,
    Json,
    NotBuilt,
    Text,
    TokenId,
    all_of,
    either,
    where,
)
from lade.applications.serve.shapes import MOST_CHOICES, ResponseFormat, ShortText, StructuredOutputs

MOST_STOPS, MOST_TOP = 16, 20
SEEDS = 1 << 63
TRUE: Json = {"const": True}
FORMAT = "response_format"

CorpusName = Annotated[str, Field(min_length=1, max_length=128), UNICODE]
Stops = ShortText | Annotated[list[ShortText], Field(max_length=MOST_STOPS)]


class LadeOptions(Fields):
    """What is lade's own.

    Attributes:
        speculation: whether drafts are used; the text is the same.
        steps: whether each chunk of a stream tells how many tokens its step emitted.
        corpus: the corpus to draft from, of those that the key added; `None` for the last one.
    """

    speculation: bool = True
    steps: bool = False
    corpus: CorpusName | None = None


class StreamOptions(Fields):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


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


# Rules across fields; those about numbers of tokens and texts, names of functions, contents of schemas and structured
# outputs are not told.
STREAMED = either(where(stream_options=NULL), where("stream", stream=TRUE))
ECHOED = either(where(max_tokens={"not": {"const": 0}}), where("echo", echo=TRUE))


class Decoding(Asked):
    """How tokens are chosen and where a text ends."""

    top_k: Annotated[int, Field(ge=-1, le=1 << 30), WHOLE] | None = None
    min_p: float | None = Field(None, ge=0, le=1)
    seed: Annotated[int, Field(ge=-SEEDS, lt=SEEDS), WHOLE] | None = None
    stop: Stops | None = None
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        None, json_schema_extra={"propertyNames": {"pattern": "^[0-9]{1,9}$"}}
    )
    # vLLM's.
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, le=1 << 30), WHOLE] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MOST_STOPS)] | None = None
    skip_special_tokens: Always = None
    spaces_between_special_tokens: Always = None
    include_stop_str_in_output: NotBuilt = None


class Sampling(Decoding):
    """The fields that chats and completions share."""

    n: Annotated[int, Field(ge=1, le=MOST_CHOICES), WHOLE] | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    metadata: Any = None  # changes nothing here
    # vLLM's.
    structured_outputs: StructuredOutputs | None = None
    prompt_logprobs: NotBuilt = None
    truncate_prompt_tokens: NotBuilt = None
    use_beam_search: NotBuilt = None

    @model_validator(mode="after")
    def _streams(self) -> Sampling:
        if self.stream_options is not None and not self.stream:
            raise ValueError("must have stream_options only where stream is true")
        return self

    @model_validator(mode="after")
    def _has_room(self) -> Sampling:
        if self.asked_tokens is not None and (self.min_tokens or 0) > self.asked_tokens:
            raise ValueError("must have min_tokens of at most its most tokens")
        return self

    @model_validator(mode="after")
    def _keeps_to_one(self) -> Sampling:
        if len(self.grammars) > 1:
            raise ValueError(f"must have either {' or '.join(self.grammars)}")
        if self.grammars and (self.ignore_eos or self.min_tokens):
            raise ValueError(
                f"must have ignore_eos and min_tokens only without {self.grammars[0]}, which ends the answer"
            )
        return self

    @property
    def grammars(self) -> list[str]:
        """What says to which grammar the answer keeps."""
        shaped = self.response_format is not None and self.response_format.type != "text"
        structured = self.structured_outputs is not None
        return [FORMAT] * shaped + ["structured_outputs"] * structured

    @property
    def asked_tokens(self) -> int | None:
        """The most tokens of an answer, where they are given."""
        raise NotImplementedError

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def wants_usage_so_far(self) -> bool:
        """Whether each chunk of a stream has the usage so far."""
        return self.wants_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)


Prompt = (
    Text
    | Annotated[list[TokenId], Field(min_length=1)]
    | Annotated[list[Text], Field(min_length=1, max_length=MOST_CHOICES)]
    | Annotated[list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1, max_length=MOST_CHOICES)]
)


class CompletionRequest(Sampling):
    """The body of /v1/completions."""

    model_config = ConfigDict(json_schema_extra=all_of(STREAMED, ECHOED))
    prompt: Prompt
    max_tokens: Annotated[int, Field(ge=0), WHOLE] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MOST_TOP), WHOLE] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=MOST_CHOICES), WHOLE] | None = None
    suffix: NotBuilt = None

    @model_validator(mode="after")
    def _fits(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ValueError("must have best_of equal to n, since the server does not choose among answers")
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("must have max_tokens of at least 1 where echo is not true")
        return self

    @property
    def asked_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def prompts(self) -> list[str | list[int]]:
        prompt = self.prompt
        if isinstance(prompt, str) or isinstance(prompt[0], int):
            return [prompt]
        return list(prompt)
