"""The text subset of OpenAI's /v1/responses: its fields, turned into those of a chat, and its answers and events."""

from __future__ import annotations

import json
import uuid
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from lade.applications.serve.answer import Answer, Choice, Delta
from lade.applications.serve.fields import WHOLE, Fields, NotBuilt, Text
from lade.applications.serve.formats import Extras, Format, Json
from lade.applications.serve.logprobs import TokenTexts
from lade.applications.serve.messages import Content, joined
from lade.applications.serve.schema import Asked, ChatRequest
from lade.applications.serve.shapes import ObjectFormat, SchemaFields, TextFormat
from lade.applications.serve.usage import speculation_of, usage_of
from lade.base.shown import shown

# Fields of the chat that has the same answer, under their names here.
NAMES = {
    "messages": "input",
    "response_format.json_schema.schema": "text.format.schema",
    "response_format": "text.format",
}


class InputMessage(Fields):
    """One turn; `id`, `status` and `phase` of earlier answers are taken and ignored."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    type: Literal["message"] | None = None
    id: Any = None
    status: Any = None
    phase: Any = None

    @model_validator(mode="before")
    @classmethod
    def _is_message(cls, item: Any) -> Any:
        """Of other items it is not told what else they lack."""
        kind = item.get("type") if isinstance(item, dict) else None
        if kind not in (None, "message"):
            raise ValueError(f"must have the type 'message', as other items are not taken, got {shown(kind)}")
        return item


class OutputSchema(SchemaFields):
    type: Literal["json_schema"]


class TextOptions(Fields):
    format: Annotated[TextFormat | ObjectFormat | OutputSchema, Field(discriminator="type")] | None = None
    verbosity: Any = None


class ResponsesRequest(Asked):
    """The body of /v1/responses."""

    input: Text | Annotated[list[InputMessage], Field(min_length=1)]
    instructions: Text | None = None
    max_output_tokens: Annotated[int, Field(ge=1), WHOLE] | None = None
    text: TextOptions | None = None
    metadata: dict[str, Any] | None = None
    # They would change the answer.
    previous_response_id: NotBuilt = None
    conversation: NotBuilt = None
    background: NotBuilt = None
    tools: NotBuilt = None
    prompt: NotBuilt = None
    include: NotBuilt = None
    # They change nothing here.
    parallel_tool_calls: Any = None
    reasoning: Any = None
    stream_options: Any = None
    tool_choice: Any = None
    truncation: Any = None

    def chat(self) -> ChatRequest:
        """The chat that has the same answer."""
        turns = [InputMessage(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        messages = [{"role": turn.role, "content": joined(turn.content)} for turn in turns]
        if self.instructions is not None:
            messages.insert(0, {"role": "system", "content": self.instructions})
        fields = {
            "messages": messages,
            "response_format": self._format(),
            "max_completion_tokens": self.max_output_tokens,
        }
        shared = self.model_dump(include={"model", "temperature", "top_p", "stream", "lade"})
        return ChatRequest.model_validate(fields | shared)

    def _format(self) -> Json | None:
        wanted = None if self.text is None else self.text.format
        if not isinstance(wanted, OutputSchema):
            return None if wanted is None else {"type": wanted.type}
        return {"type": wanted.type, "json_schema": wanted.model_dump(by_alias=True, exclude={"type"})}


class ResponsesFormat(Format):
    """Answers and events of /v1/responses. An event has a number, and its type in a line of its own."""

    kind, whole, chunk, closing = "resp_", "response", "response", b""

    def __init__(self, model: str, answer: Answer, tokens: TokenTexts, request: ResponsesRequest) -> None:
        super().__init__(model, answer, tokens, Extras())
        self._request, self._item, self._number = request, f"msg_{uuid.uuid4().hex}", 0
        (self._choice_of,) = answer.choices

    def body(self) -> Json:
        ended = self._choice_of.finish
        cut = {"reason": "max_output_tokens"} if ended == "length" else None
        output = [] if ended is None else [self._message("incomplete" if cut else "completed", self._choice_of)]
        usage = None if ended is None else _usage(usage_of(self.answer))
        found = {
            "id": self._head["id"],
            "object": "response",
            "created_at": self._head["created"],
            "model": self._head["model"],
            "status": "in_progress" if ended is None else "incomplete" if cut else "completed",
            "output": output,
            "usage": usage,
            "error": None,
            "incomplete_details": cut,
        }
        return found | self._asked() | (speculation_of(self.answer) if ended else {})

    def framed(self, chunk: Json) -> bytes:
        chunk = chunk | {"sequence_number": self._number}
        self._number += 1
        return b"event: " + str(chunk["type"]).encode() + b"\n" + super().framed(chunk)

    def failed(self, error: Json) -> Json:
        return {"type": "error"} | {name: error["error"][name] for name in ("code", "message", "param")}

    def first(self) -> list[Json]:
        item = {"id": self._item, "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        return [
            {"type": "response.created", "response": self.body()},
            {"type": "response.in_progress", "response": self.body()},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            self._of_part("response.content_part.added", part=_part("")),
        ]

    def of(self, delta: Delta) -> list[Json]:
        told = [self._of_part("response.output_text.delta", delta=delta.text, logprobs=[])] if delta.text else []
        return told if delta.finish is None else told + self._ended()

    def last(self) -> list[Json]:
        body = self.body()
        return [{"type": f"response.{body['status']}", "response": body}]

    def _ended(self) -> list[Json]:
        text = self._choice_of.text
        (message,) = self.body()["output"]
        return [
            self._of_part("response.output_text.done", text=text, logprobs=[]),
            self._of_part("response.content_part.done", part=_part(text)),
            {"type": "response.output_item.done", "output_index": 0, "item": message},
        ]

    def _of_part(self, kind: str, **fields: Any) -> Json:
        return {"type": kind, "item_id": self._item, "output_index": 0, "content_index": 0} | fields

    def _message(self, status: str, choice: Choice) -> Json:
        content = [_part(choice.text)]
        return {"id": self._item, "type": "message", "role": "assistant", "status": status, "content": content}

    def _asked(self) -> Json:
        """The fields of the request, as the answer repeats them."""
        asked = self._request
        text = (
            {"format": {"type": "text"}}
            if asked.text is None
            else json.loads(asked.text.model_dump_json(by_alias=True))
        )
        return {
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "temperature": 1.0 if asked.temperature is None else asked.temperature,
            "text": text,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0 if asked.top_p is None else asked.top_p,
        }


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Json) -> Json:
    """Tokens, under the names of this endpoint."""
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }
