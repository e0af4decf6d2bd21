"""From tokens to text, piece by piece: whole characters only, and nothing that may begin a stop string.

Knows a tokenizer's `decode`; no request and no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

BROKEN = "\ufffd"  # stands for bytes that are no character
CONTEXT = 8  # tokens of the prompt that are decoded again: a token's text depends on those before it


class Detokenizer:
    """The text of tokens that arrive one by one.

    Args:
        prompt: the tokens before them.
        special: whether special tokens are text.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int], special: bool = False) -> None:
        self._tokenizer, self._skip = tokenizer, not special
        self._tokens = list(prompt[-CONTEXT:])
        self._context, self._read = 0, len(self._tokens)  # tokens before `_read` are told, from `_context` on again

    def add(self, token: int) -> str:
        """The text that is new with a token; empty while it ends inside a character."""
        self._tokens.append(token)
        return self._new(final=False)

    def end(self) -> str:
        """What was held back of a character that did not end."""
        return self._new(final=True)

    def _new(self, final: bool) -> str:
        known = self._decode(self._tokens[self._context : self._read])
        text = self._decode(self._tokens[self._context :])
        if len(text) <= len(known) or (text.endswith(BROKEN) and not final):
            return ""
        self._context, self._read = self._read, len(self._tokens)
        return text[len(known) :]

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=self._skip, clean_up_tokenization_spaces=False))


class StopSearch:
    """Looks for stop strings in a text that grows.

    Attributes:
        text: all of it, up to the first stop string once one is found.
        found: whether one was.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(stops)
        self.text, self.found = "", False
        self._longest = max(map(len, stops), default=0)

    def add(self, piece: str) -> bool:
        """Append a piece. Returns whether the text has a stop string."""
        if self.found or not piece:
            return self.found
        begin = max(0, len(self.text) - self._longest + 1)
        self.text += piece
        places = [place for stop in self.stops if (place := self.text.find(stop, begin)) >= 0]
        if places:
            self.text, self.found = self.text[: min(places)], True
        return self.found

    @property
    def certain(self) -> int:
        """Characters of the text that no later piece can make a part of a stop string."""
        held = 0 if self.found else max((overlap(self.text, stop) for stop in self.stops), default=0)
        return len(self.text) - held


def overlap(text: str, marker: str) -> int:
    """Characters at the end of a text that may begin a marker."""
    most = min(len(text), len(marker) - 1)
    return next((size for size in range(most, 0, -1) if text.endswith(marker[:size])), 0)
