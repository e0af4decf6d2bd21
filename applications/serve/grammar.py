"""Answers that keep to a JSON schema, through llguidance: masks of allowed tokens, and tokens that must follow.

A mask is an ordinary logits processor of transformers, so a text is that of plain decoding with the same one. The
tokens that must follow are drafts; the walk reads the text along the accepted path only, so nothing is taken back.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from transformers import LogitsProcessor

from lade.applications.serve.errors import APIError
from lade.applications.serve.relaxed import relaxed
from lade.applications.serve.tools import ToolFormat, arguments_of

# JSON as models write it. Free white space would force nothing, and small models write it without end.
SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
OBJECT: Mapping[str, Any] = {"type": "object"}
SCHEMA, PARAMETERS = "a JSON schema", "parameters"
WORDS = re.compile(r'"[^"]*"|[{}\[\]]|[:,] ')
ERROR_LENGTH = 200


class Grammars:
    """Makes masks for one model. For any thread.

    Args:
        vocabulary: ids below it are tokens of the model.
        ends: tokens that end a text.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, ends: frozenset[int]) -> None:
        self._hf, self._vocabulary, self._ends = tokenizer, vocabulary, ends
        self._lock = threading.Lock()
        self._made: LLTokenizer | None = None

    def mask(self, schema: Mapping[str, Any], prompt_length: int, param: str) -> GrammarMask:
        """The mask of one answer.

        Args:
            param: the request's field that holds the schema, for errors.

        Raises:
            APIError: the schema is wrong, or too large.
        """
        try:
            grammar = LLMatcher.grammar_from_json_schema(relaxed(schema), overrides=SPACING)  # type: ignore[arg-type]
        except ValueError as error:
            raise _wrong(param, SCHEMA, str(error)) from error
        return self._mask(grammar, prompt_length, param)

    def regex_mask(self, pattern: str, prompt_length: int, param: str) -> GrammarMask:
        """The mask of an answer that a regular expression matches as a whole.

        Raises:
            APIError: it is none.
        """
        return self._mask(LLMatcher.grammar_from_regex(pattern), prompt_length, param, "a regular expression")

    def choice_mask(self, texts: Sequence[str], prompt_length: int, param: str) -> GrammarMask:
        """The mask of an answer that is one of some texts, none of which is empty."""
        rule = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
        return self._mask(LLMatcher.grammar_from_lark(f"start: {rule}"), prompt_length, param, "texts")

    def call_mask(
        self,
        form: ToolFormat,
        tools: Sequence[dict[str, Any]],
        prompt_length: int,
        text: Mapping[str, Any] | None = None,
    ) -> GrammarMask:
        """The mask of an answer that calls one of some functions, in a model's own format.

        The arguments of each function are JSON of their own, since a schema may refer to its root.

        Args:
            text: the schema of an answer that calls none; `None` if it must call one.

        Raises:
            APIError: the parameters of a function are no schema.
        """
        names = [f"call_{number}" for number in range(len(tools))]
        rules = [f"start: {self._quoted(form.begin)} ({' | '.join(names)}) {self._quoted(form.end)}"]
        if text is not None:
            rules = [f"{rules[0]} | text", f"text: {_json(text)}"]
        for name, tool in zip(names, tools, strict=True):
            before, behind = map(_spelled, form.around(tool["name"]))
            rules.append(f"{name}: {before} {_json(arguments_of(tool))} {behind}")
        try:
            return self._mask(LLMatcher.grammar_from_lark("\n".join(rules)), prompt_length, "tools")
        except APIError:
            for tool in tools:
                self._check_function(tool)
            raise

    def _check_function(self, tool: Mapping[str, Any]) -> None:
        """An error that names the function whose parameters no grammar can follow."""
        try:
            self.mask(arguments_of(dict(tool)), 0, PARAMETERS)
        except APIError as error:
            message = f"tools must have functions that can be called, got {tool['name']}: {error}"
            raise APIError(400, message, "tools") from error

    def _quoted(self, text: str) -> str:
        """A text in a grammar: its token, where it is a special one."""
        if text in self._hf.all_special_tokens:
            return f"<[{self._hf.convert_tokens_to_ids(text)}]>"
        return json.dumps(text) if text else ""

    def _mask(self, grammar: str, prompt_length: int, param: str, kind: str = SCHEMA) -> GrammarMask:
        matcher = LLMatcher(self._tokenizer(), grammar, log_level=0)
        if matcher.is_error():
            raise _wrong(param, kind, matcher.get_error())
        return GrammarMask(matcher, prompt_length)

    def _tokenizer(self) -> LLTokenizer:
        """Made once, when it is first needed: it takes up to a second."""
        with self._lock:
            if self._made is None:
                self._made = self._of_backend()
            return self._made

    def _of_backend(self) -> LLTokenizer:
        backend = getattr(self._hf, "backend_tokenizer", None)
        if backend is None or not self._ends:
            allowed = "left out: the model has no fast tokenizer, or no token that ends a text"
            raise APIError(400, f"response_format must be {allowed}", "response_format")
        size = max(self._vocabulary, backend.get_vocab_size())
        return LLTokenizer(backend.to_str(), n_vocab=size, eos_token=sorted(self._ends))


class GrammarMask(LogitsProcessor):
    """Allows the tokens that a grammar allows. One object serves one answer, whose tokens it reads in order."""

    def __init__(self, matcher: LLMatcher, prompt_length: int) -> None:
        self._matcher, self._seen = matcher, prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """[1, V] scores from [1, P + emitted] ids."""
        self._read(input_ids[0, self._seen :].tolist())
        octets = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        bits = np.unpackbits(octets, count=min(8 * len(octets), scores.shape[-1]), bitorder="little")
        allowed = torch.zeros(scores.shape[-1], dtype=torch.bool)
        allowed[: len(bits)] = torch.from_numpy(bits).bool()
        self._check()
        return scores.masked_fill(~allowed.to(scores.device), -torch.inf)

    def forced(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that must follow a text, prompt included; none where several may."""
        self._read(list(tokens[self._seen :]))
        return list(self._matcher.compute_ff_tokens())

    def _read(self, tokens: list[int]) -> None:
        self._seen += len(tokens)
        if tokens:
            self._matcher.consume_tokens(tokens)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise _wrong("response_format", SCHEMA, self._matcher.get_error())


def _spelled(text: str) -> str:
    """A part of JSON in a grammar, in the words in which `%json` reads it: a longer one would hide those of a text."""
    return " ".join(map(json.dumps, WORDS.findall(text)))


def _json(schema: Mapping[str, Any]) -> str:
    """JSON that keeps to a schema, in a grammar."""
    return f"%json {json.dumps(relaxed(schema) | {'x-guidance': SPACING})}"


def _wrong(param: str, kind: str, reason: str) -> APIError:
    told = " ".join(reason.split())[:ERROR_LENGTH]
    return APIError(400, f"{param} must be {kind} that can be followed, got what cannot ({told})", param)
