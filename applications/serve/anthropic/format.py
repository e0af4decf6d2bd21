"""Answers and events of /v1/messages."""

from __future__ import annotations

from typing import Any

from lade.applications.serve.answer import LENGTH, Delta
from lade.applications.serve.anthropic.content import AnswerContent
from lade.applications.serve.fields import Json
from lade.applications.serve.tools import read
from lade.applications.serve.translated import TranslatedFormat
from lade.applications.serve.usage import speculation_of, usage_of


class MessagesFormat(TranslatedFormat):
    """Answers and events."""

    kind = "msg_"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._content = AnswerContent()

    def first(self) -> list[Json]:
        return [{"type": "message_start", "message": self._message() | {"content": []}}]

    def of(self, delta: Delta) -> list[Json]:
        ended = delta.finish is not None
        told = self._content.add(read(self._parser, delta.text, ended, cut=delta.finish == LENGTH))
        return told + self._content.end() if ended else told

    def last(self) -> list[Json]:
        delta = {"type": "message_delta", "delta": self._stopped(), "usage": self._usage()}
        return [delta | speculation_of(self.answer), {"type": "message_stop"}]

    def _whole(self) -> Json:
        return self._message() | speculation_of(self.answer)

    def _message(self) -> Json:
        head = {"id": self._head["id"], "type": "message", "role": "assistant", "model": self._head["model"]}
        return head | {"content": self._content.blocks} | self._stopped() | {"usage": self._usage()}

    def _stopped(self) -> Json:
        """Why the answer ended; nothing while it goes on."""
        finish, stop = self._choice_of.finish, self._choice_of.whole.search.stop
        if finish is None:
            reason = None
        elif finish == LENGTH:
            reason = "max_tokens"
        elif self._parser is not None and self._parser.found:
            reason = "tool_use"
        else:
            reason = "stop_sequence" if stop in (self._request.stop_sequences or []) else "end_turn"
        return {"stop_reason": reason, "stop_sequence": stop if reason == "stop_sequence" else None}

    def _usage(self) -> dict[str, Any]:
        """Tokens, under the names of this endpoint, whose input counts no cached ones."""
        usage = usage_of(self.answer)
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage["completion_tokens"],
        }
