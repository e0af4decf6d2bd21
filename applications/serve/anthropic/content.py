"""The blocks of an answer of /v1/messages, and the events that tell of them: texts, and calls of tools."""

from __future__ import annotations

import json
from typing import Any

from lade.applications.serve.begun import object_so_far
from lade.applications.serve.fields import Json
from lade.applications.serve.tools import Parsed


class AnswerContent:
    """The blocks of one answer, in order. Each one ends before the next one begins.

    Attributes:
        blocks: whole but for the last one, while the answer goes on.
    """

    def __init__(self) -> None:
        self.blocks = list[Json]()
        self._open = False  # whether the last block is a text that goes on

    def add(self, parsed: Parsed) -> list[Json]:
        """The events of a piece of the answer."""
        told = self._said(parsed.text) if parsed.text else []
        return told + [event for call, cut in parsed.each() for event in self._called(call, cut)]

    def end(self) -> list[Json]:
        """The event of the end of the text that goes on, if one does."""
        told = [self._of("stop")] if self._open else []
        self._open = False
        return told

    def _said(self, text: str) -> list[Json]:
        told = [] if self._open else self._begun({"type": "text", "text": ""})
        self._open = True
        self.blocks[-1]["text"] += text
        return [*told, self._of("delta", delta={"type": "text_delta", "text": text})]

    def _called(self, call: Json, cut: bool) -> list[Json]:
        """A call, which is told at once; `cut`: its arguments are what there is of them."""
        name, written = call["function"]["name"], call["function"]["arguments"]
        told = self.end() + self._begun({"type": "tool_use", "id": call["id"], "name": name, "input": {}})
        if cut:
            arguments = object_so_far(written) or {}
        else:
            arguments = _object(written)
            written = json.dumps(arguments, ensure_ascii=False)
        self.blocks[-1]["input"] = arguments
        delta = {"type": "input_json_delta", "partial_json": written}
        return [*told, self._of("delta", delta=delta), self._of("stop")]

    def _begun(self, block: Json) -> list[Json]:
        self.blocks.append(block)
        return [self._of("start", content_block=dict(block))]

    def _of(self, kind: str, **fields: Any) -> Json:
        return {"type": f"content_block_{kind}", "index": len(self.blocks) - 1} | fields


def _object(arguments: str) -> Json:
    """A call's arguments: what a model wrote in the place of an object is told as it is, under a name."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = arguments
    return value if isinstance(value, dict) else {"arguments": value}
