"""Answers in OpenAI's format: whole ones and the chunks of streams, of chats and of completions.

A format is one class with the same methods for both endpoints. Knows deltas and choices; no engine and no HTTP.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lade.applications.serve.answer import LENGTH, STOP, Answer, Choice, Delta, Told
from lade.applications.serve.logprobs import ChatLogprobs, CompletionLogprobs, TokenTexts
from lade.applications.serve.schema import Sampling
from lade.applications.serve.tools import Parsed, ToolParser, read
from lade.applications.serve.usage import speculation_of, usage_of

Json = dict[str, Any]
ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Extras:
    """What a stream tells beside the texts.

    Attributes:
        usage: at its end, what the request used.
        so_far: in each chunk, what it used so far.
        steps: in each chunk, the tokens that its step emitted.
    """

    usage: bool = False
    so_far: bool = False
    steps: bool = False


def asked_of(request: Sampling) -> Extras:
    return Extras(request.wants_usage, request.wants_usage_so_far, request.lade.steps)


class Format:
    """What the formats share.

    Args:
        model: its name.
        answer: whose texts are told.
        tokens: gives the text and bytes of single tokens.
        extras: what a stream tells beside the texts.

    Attributes:
        number: of events so far.
    """

    kind, whole, chunk = "", "", ""
    closing = b"data: [DONE]\n\n"  # behind the last chunk
    names_events = False  # whether the type of an event has a line of its own

    def __init__(self, model: str, answer: Answer, tokens: TokenTexts, extras: Extras) -> None:
        self.answer, self.tokens, self.extras, self.number = answer, tokens, extras, 0
        self._head: Json = {"id": f"{self.kind}{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def body(self) -> Json:
        """The whole answer, once all texts have ended."""
        choices = [self._choice(choice) for choice in self.answer.choices]
        return self._object(self.whole, choices) | {"usage": usage_of(self.answer)} | speculation_of(self.answer)

    def first(self) -> list[Json]:
        """The chunks before any text."""
        return []

    def of(self, delta: Delta) -> list[Json]:
        """The chunks of a delta; none for one that tells nothing."""
        chunks = [self._chunk([part]) for part in self._deltas(delta)]
        if self.extras.steps:
            chunks[0] |= {"lade": {"tokens": delta.count}}
        return chunks

    def last(self) -> list[Json]:
        """The chunk behind all texts: the usage, where it is asked for."""
        if not self.extras.usage:
            return []
        return [self._object(self.chunk, []) | {"usage": usage_of(self.answer)} | speculation_of(self.answer)]

    def framed(self, chunk: Json) -> bytes:
        """A chunk as the next event."""
        event = self.event(chunk, self.number)
        self.number += 1
        return event

    @classmethod
    def event(cls, chunk: Json, number: int) -> bytes:
        """A server-sent event, behind this many others."""
        name = b"event: " + str(chunk["type"]).encode() + b"\n" if cls.names_events else b""
        return name + b"data: " + ENCODER.encode(chunk).encode("utf-8", "replace") + b"\n\n"

    @classmethod
    def failed(cls, error: Json, number: int) -> bytes:
        """The event that tells an error, from the body of one."""
        return cls.event(error, number)

    def _chunk(self, choices: Sequence[Json]) -> Json:
        usage = usage_of(self.answer) if self.extras.so_far else None
        return self._object(self.chunk, choices) | ({"usage": usage} if self.extras.usage else {})

    def _object(self, kind: str, choices: Sequence[Json]) -> Json:
        return self._head | {"object": kind, "choices": list(choices)}

    def _choice(self, choice: Choice) -> Json:
        raise NotImplementedError

    def _deltas(self, delta: Delta) -> list[Json]:
        """The parts that chunks tell; where steps are told, one at least."""
        raise NotImplementedError


class ChatFormat(Format):
    """/v1/chat/completions; `parsers`: give each choice its parser of calls; `None` where there are no functions."""

    kind, whole, chunk = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def __init__(
        self,
        model: str,
        answer: Answer,
        tokens: TokenTexts,
        extras: Extras,
        parser: Callable[[], ToolParser] | None = None,
    ) -> None:
        super().__init__(model, answer, tokens, extras)
        self._parsers = None if parser is None else [parser() for _ in answer.choices]

    def first(self) -> list[Json]:
        start = {"role": "assistant", "content": "", "refusal": None}
        return [
            self._chunk([{"index": choice.index, "delta": start, "logprobs": None, "finish_reason": None}])
            for choice in self.answer.choices
        ]

    def _choice(self, choice: Choice) -> Json:
        parsed, finish = self._parsed(choice.index, choice.text, choice.finish)
        message: Json = {"role": "assistant", "content": parsed.text, "refusal": None}
        if parsed.calls:
            calls = [{name: call[name] for name in ("id", "type", "function")} for call in parsed.calls]
            message |= {"content": parsed.text or None, "tool_calls": calls}
        told = self._logprobs(choice, choice.logprobs)
        return {"index": choice.index, "message": message, "logprobs": told, "finish_reason": finish}

    def _deltas(self, delta: Delta) -> list[Json]:
        """Why an answer ends comes behind its calls: OpenAI's package ends a call with the chunk that follows it."""
        told = self._logprobs(self.answer.choices[delta.index], delta.tokens) if delta.tokens else None
        parsed, finish = self._parsed(delta.index, delta.text, delta.finish)
        content: Json = {"content": parsed.text} if parsed.text else {}
        found = {"index": delta.index, "delta": content, "logprobs": told, "finish_reason": finish}
        if parsed.calls:
            calls = found | {"delta": content | {"tool_calls": parsed.calls}, "finish_reason": None}
            return [calls] if finish is None else [calls, found | {"delta": {}, "logprobs": None}]
        return [found] if content or told or finish or self.extras.steps else []

    def _parsed(self, index: int, text: str, finish: str | None) -> tuple[Parsed, str | None]:
        """Text and calls of a piece, and why the answer ends."""
        parser = None if self._parsers is None else self._parsers[index]
        parsed = read(parser, text, final=finish is not None, cut=finish == LENGTH)
        return parsed, "tool_calls" if finish == STOP and parser is not None and parser.found else finish

    def _logprobs(self, choice: Choice, tokens: Sequence[Told]) -> Json | None:
        if choice.request.logprobs is None:
            return None
        return {"content": ChatLogprobs(self.tokens, choice.ends).told(tokens), "refusal": None}


class CompletionFormat(Format):
    """/v1/completions; `echo`: the text of each prompt, by choice; `None` where it is not told."""

    kind, whole, chunk = "cmpl-", "text_completion", "text_completion"

    def __init__(self, model: str, answer: Answer, tokens: TokenTexts, extras: Extras, echo: bool) -> None:
        super().__init__(model, answer, tokens, extras)
        self._echo = [tokens.of_prompt(choice.request) if echo else None for choice in answer.choices]
        self._logprobs = CompletionLogprobs(tokens)
        self._begun: set[int] = set()  # indices of choices whose prompts are told

    def of(self, delta: Delta) -> list[Json]:
        """The prompt comes before the first delta: its log probabilities are known by then."""
        if delta.index in self._begun or self._echo[delta.index] is None:
            return super().of(delta)
        self._begun.add(delta.index)
        choice = self.answer.choices[delta.index]
        prompt = self._told(delta.index, self._echo[delta.index] or "", self._of_prompt(choice), None)
        return [self._chunk([prompt]), *super().of(delta)]

    def _choice(self, choice: Choice) -> Json:
        text, before = self._echo[choice.index] or "", self._of_prompt(choice)
        own = self._of_answer(choice, choice.logprobs)
        both = before if own is None else own if before is None else {name: before[name] + own[name] for name in own}
        return self._told(choice.index, text + choice.text, both, choice.finish)

    def _deltas(self, delta: Delta) -> list[Json]:
        told = self._of_answer(self.answer.choices[delta.index], delta.tokens) if delta.tokens else None
        says = delta.text or told or delta.finish or self.extras.steps
        return [self._told(delta.index, delta.text, told, delta.finish)] if says else []

    def _of_prompt(self, choice: Choice) -> Json | None:
        request = choice.request
        if self._echo[choice.index] is None or request.logprobs is None:
            return None
        return self._logprobs.of_prompt(request.tokens[: request.prompt_length], request.logprobs.of_prompt)

    def _of_answer(self, choice: Choice, tokens: Sequence[Told]) -> Json | None:
        if choice.request.logprobs is None:
            return None
        return self._logprobs.told(tokens, behind=len(self._echo[choice.index] or ""))

    def _told(self, index: int, text: str, logprobs: Json | None, finish: str | None) -> Json:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
