"""Calls of functions: how a model writes them, the grammar that makes it write one, and how its text is read.

A model writes calls as its chat template shows them: between `<tool_call>` and `</tool_call>` (Hermes, Qwen), behind
`[TOOL_CALLS]` (Mistral), or as bare JSON (Llama 3, and every other model). Knows text; no tokenizer and no request.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lade.applications.serve.begun import calls_so_far
from lade.applications.serve.text import overlap

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model writes calls.

    Attributes:
        begin, end: stand around a call; empty where the whole answer is one.
        arguments: the name of a call's arguments.
        listed: whether calls are in a list.
    """

    begin: str
    end: str
    arguments: str = "arguments"
    listed: bool = False

    def around(self, name: str) -> tuple[str, str]:
        """What stands before and behind the arguments in a call of a function."""
        first, last = ("[", "]") if self.listed else ("", "")
        return f'{first}{{"name": {json.dumps(name)}, "{self.arguments}": ', f"}}{last}"


HERMES = ToolFormat("<tool_call>\n", "\n</tool_call>")
MISTRAL = ToolFormat("[TOOL_CALLS]", "", listed=True)
LLAMA = ToolFormat("", "", arguments="parameters")
BARE = ToolFormat("", "")
NO_ARGUMENTS: Json = {"type": "object", "properties": {}, "additionalProperties": False}
PROMPT = 'You may call these functions. To call one, answer with {{"name": ..., "arguments": {{...}}}} alone.\n{}'


def format_of(template: str | None) -> ToolFormat:
    """How a model with this chat template writes calls."""
    if template is not None:
        for marker, form in (("<tool_call>", HERMES), ("[TOOL_CALLS]", MISTRAL), ('"parameters"', LLAMA)):
            if marker in template:
                return form
    return BARE


def arguments_of(function: Json) -> Json:
    """The JSON schema of a function's arguments: without parameters, as OpenAI has it, it takes none."""
    parameters: Json | None = function.get("parameters")
    return NO_ARGUMENTS if parameters is None else parameters or {"type": "object"}


def told(tools: Sequence[Json]) -> Json:
    """A message that tells of the functions, for templates that do not."""
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return {"role": "system", "content": PROMPT.format(lines)}


@dataclass(frozen=True, slots=True)
class Parsed:
    """What is new of an answer: text, and calls.

    Attributes:
        cut: whether the last call has begun and not ended: its arguments are what there is of them.
    """

    text: str
    calls: list[Json]
    cut: bool = False

    def each(self) -> list[tuple[Json, bool]]:
        """Its calls, and whether each is cut."""
        last = len(self.calls) - 1
        return [(call, self.cut and number == last) for number, call in enumerate(self.calls)]


@dataclass(slots=True, eq=False)
class ToolParser:
    """Reads the calls in one answer, in whatever pieces it comes. Text is held back while it may begin a call.

    Attributes:
        names: the functions that there are; JSON with another name is text.
        found: calls so far.
    """

    form: ToolFormat
    names: frozenset[str]
    found: int = 0
    _held: str = field(default="", init=False)
    _behind: bool = field(default=False, init=False)  # whether a call was the last thing read
    _said: bool = field(default=False, init=False)  # whether a bare answer is a text

    def add(self, piece: str, final: bool, cut: bool = False) -> Parsed:
        """Take a piece of the answer.

        Args:
            final: whether it is the last one.
            cut: whether the answer then has as many tokens as it may, so that a call may have begun and not ended.
        """
        self._held += piece
        parsed = self._marked(final, cut) if self.form.begin else self._bare(final, cut)
        for call in parsed.calls:
            call["index"] = self.found
            self.found += 1
        return parsed

    def _bare(self, final: bool, cut: bool) -> Parsed:
        """An answer that begins with a brace is read at its end; behind text all is text."""
        start = self._held.lstrip()
        may_call = not self._said and (not start or start.startswith(("{", "[")))
        if may_call and not final:
            return Parsed("", [])
        text, self._held, self._said = self._held, "", True
        found = self._read(start, cut) if may_call else None
        return found or Parsed(text, [])

    def _marked(self, final: bool, cut: bool) -> Parsed:
        """White space around calls is none of the text."""
        marker, end = self.form.begin.strip(), self.form.end.strip()
        texts, calls, short = list[str](), list[Json](), False
        while True:
            if self._behind:
                self._held = self._held.lstrip()
                self._behind = not self._held
            before, begun, inside = self._held.partition(marker)
            body, ended, rest = inside.partition(end) if end else (inside, "" if not final else "end", "")
            if not begun or not (ended or final):
                certain = len(self._held) if final else len(before[: len(before) - overlap(before, marker)].rstrip())
                texts.append(self._held[:certain])
                self._held = self._held[certain:]
                break
            found = self._read(body, cut and not (end and ended))
            texts.append(before.rstrip() if found else before + begun + body + (ended if end else ""))
            calls += found.calls if found else []
            short = found is not None and found.cut
            self._held, self._behind = rest, found is not None
        return Parsed("".join(texts), calls, short)

    def _read(self, text: str, cut: bool) -> Parsed | None:
        """The calls of a text; `None` if it is something else."""
        calls = self._calls(text)
        if calls is None:
            return self._begun(text.lstrip()) if cut else None
        return Parsed("", calls)

    def _begun(self, text: str) -> Parsed | None:
        """The calls of a text that goes on; `None` if it is something else."""
        found = calls_so_far(text, self.form.end.strip())
        if found is None:
            return None
        values, begun = found
        if begun is not None:
            values.append({"name": begun[0], "arguments": begun[1]})
        calls = self._calls_of(values)
        return None if calls is None else Parsed("", calls, begun is not None)

    def _calls(self, text: str) -> list[Json] | None:
        """The calls of a text; `None` if it is something else."""
        try:
            value = json.loads(text.strip())
        except (ValueError, RecursionError):
            return None
        return self._calls_of(value if isinstance(value, list) else [value])

    def _calls_of(self, values: Sequence[Any]) -> list[Json] | None:
        found = [self._call(each) for each in values]
        return None if not found or None in found else [call for call in found if call is not None]

    def _call(self, value: Any) -> Json | None:
        if not isinstance(value, dict) or value.get("name") not in self.names:
            return None
        arguments: Any = next((value[name] for name in ("arguments", "parameters") if name in value), {})
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        function = {"name": value["name"], "arguments": written}
        return {"index": 0, "id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}


def read(parser: ToolParser | None, piece: str, final: bool, cut: bool = False) -> Parsed:
    """A piece of an answer, by its parser; `None`: there are no functions, and all is text."""
    return Parsed(piece, []) if parser is None else parser.add(piece, final, cut)


def for_template(calls: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Earlier calls as chat templates read them: their arguments are objects, not text."""
    found = []
    for call in calls:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        with contextlib.suppress(ValueError, RecursionError):  # what the model wrote otherwise, it sees again
            arguments = json.loads(arguments)
        found.append({"id": call["id"], "type": "function", "function": {"name": name, "arguments": arguments}})
    return found
