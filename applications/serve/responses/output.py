"""The items of an answer of /v1/responses, and the events that tell of them: a message, and calls of functions."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from lade.applications.serve.fields import Json
from lade.applications.serve.tools import Parsed


class Output:
    """The items of one answer, in the order in which they begin. All text is one message, open until the end.

    Attributes:
        items: complete ones once the answer has ended.
    """

    def __init__(self) -> None:
        self.items = list[Json]()
        self._message: Json | None = None
        self._text, self._logprobs = "", list[Json]()
        self._untold = 0  # log probabilities that no event has told: their text is held back

    def add(self, parsed: Parsed, logprobs: Sequence[Json]) -> list[Json]:
        """The events of a piece of the answer, whose tokens have these log probabilities."""
        self._logprobs += logprobs
        told = self._said(parsed.text) if parsed.text else []
        return told + [event for call, cut in parsed.each() for event in self._called(call, cut)]

    def end(self, cut: bool) -> list[Json]:
        """The events of the end. An answer that says nothing has an empty message.

        Args:
            cut: whether the answer has as many tokens as it may.
        """
        told = [] if self.items else self._begun()
        message = self._message
        if message is None:
            return told
        message["status"] = "incomplete" if cut else "completed"
        message["content"] = [self._part(self._text, self._logprobs)]
        return [
            *told,
            self._of_message("output_text.done", text=self._text, logprobs=self._logprobs),
            self._of_message("content_part.done", part=message["content"][0]),
            self._of_item("output_item.done", message),
        ]

    def _said(self, text: str) -> list[Json]:
        told = self._begun() if self._message is None else []
        self._text += text
        logprobs, self._untold = self._logprobs[self._untold :], len(self._logprobs)
        return [*told, self._of_message("output_text.delta", delta=text, logprobs=logprobs)]

    def _begun(self) -> list[Json]:
        """The beginning of the message."""
        message: Json = {"type": "message", "role": "assistant", "status": "in_progress", "content": []}
        self._message = self._new("msg_", message)
        return [
            self._of_item("output_item.added", dict(self._message)),
            self._of_message("content_part.added", part=self._part("", [])),
        ]

    def _called(self, call: Json, cut: bool) -> list[Json]:
        """A call, which is told at once; `cut`: its arguments are what there is of them."""
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        fields = {"type": "function_call", "call_id": call["id"], "name": name}
        item = self._new("fc_", fields | {"arguments": arguments, "status": "incomplete" if cut else "completed"})
        return [
            self._of_item("output_item.added", item | {"arguments": "", "status": "in_progress"}),
            self._of("function_call_arguments.delta", item, delta=arguments),
            self._of("function_call_arguments.done", item, name=name, arguments=arguments),
            self._of_item("output_item.done", item),
        ]

    def _new(self, kind: str, fields: Json) -> Json:
        self.items.append({"id": f"{kind}{uuid.uuid4().hex}"} | fields)
        return self.items[-1]

    def _place(self, item: Json) -> int:
        return next(place for place, each in enumerate(self.items) if each["id"] == item["id"])

    def _of_item(self, kind: str, item: Json) -> Json:
        return {"type": f"response.{kind}", "output_index": self._place(item), "item": item}

    def _of(self, kind: str, item: Json, **fields: Any) -> Json:
        return {"type": f"response.{kind}", "item_id": item["id"], "output_index": self._place(item)} | fields

    def _of_message(self, kind: str, **fields: Any) -> Json:
        assert self._message is not None
        return self._of(kind, self._message, content_index=0, **fields)

    @staticmethod
    def _part(text: str, logprobs: Sequence[Json]) -> Json:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}
