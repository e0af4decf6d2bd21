"""Answers and events of /v1/responses."""

from __future__ import annotations

from typing import Any

from lade.applications.serve.answer import LENGTH, Delta
from lade.applications.serve.fields import Json
from lade.applications.serve.logprobs import ChatLogprobs
from lade.applications.serve.responses.output import Output
from lade.applications.serve.tools import read
from lade.applications.serve.translated import TranslatedFormat
from lade.applications.serve.usage import speculation_of, usage_of

# Fields of the request that the answer repeats, with their values where none are given; and fields with one value.
REPEATED: Json = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
}
ALWAYS: Json = {"parallel_tool_calls": True, "previous_response_id": None}


class ResponsesFormat(TranslatedFormat):
    """Answers and events, which have numbers."""

    kind = "resp_"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._output = Output()
        self._logprobs = ChatLogprobs(self.tokens, self._choice_of.ends)

    @classmethod
    def event(cls, chunk: Json, number: int) -> bytes:
        return super().event(chunk | {"sequence_number": number}, number)

    @classmethod
    def failed(cls, error: Json, number: int) -> bytes:
        told = {name: error["error"][name] for name in ("code", "message", "param")}
        return cls.event({"type": "error"} | told, number)

    def first(self) -> list[Json]:
        return [{"type": f"response.{kind}", "response": self._whole()} for kind in ("created", "in_progress")]

    def of(self, delta: Delta) -> list[Json]:
        ended, cut = delta.finish is not None, delta.finish == LENGTH
        told = self._output.add(read(self._parser, delta.text, ended, cut), self._logprobs.told(delta.tokens))
        return told + self._output.end(cut) if ended else told

    def last(self) -> list[Json]:
        response = self._whole()
        return [{"type": f"response.{response['status']}", "response": response}]

    def _whole(self) -> Json:
        finish = self._choice_of.finish
        ended, cut = finish is not None, finish == LENGTH
        found = {
            "id": self._head["id"],
            "object": "response",
            "created_at": self._head["created"],
            "model": self._head["model"],
            "status": "incomplete" if cut else "completed" if ended else "in_progress",
            "output": self._output.items if ended else [],
            "usage": _usage(usage_of(self.answer)) if ended else None,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        }
        return found | self._asked() | (speculation_of(self.answer) if ended else {})

    def _asked(self) -> Json:
        """The fields of the request, as the answer repeats them."""
        asked = self._request.model_dump(mode="json", by_alias=True, include=set(REPEATED))
        return {name: default if asked[name] is None else asked[name] for name, default in REPEATED.items()} | ALWAYS


def _usage(usage: Json) -> Json:
    """Tokens, under the names of this endpoint."""
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"] | {"cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }
