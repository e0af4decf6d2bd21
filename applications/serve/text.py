"""From tokens to text, piece by piece: whole characters only, and nothing that may begin a stop string.

Knows a tokenizer's `decode`; no request and no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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
        stop: the one that was found.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(stops)
        self.text = ""
        self.stop: str | None = None
        self._longest = max(map(len, stops), default=0)

    @property
    def found(self) -> bool:
        """Whether the text had a stop string."""
        return self.stop is not None

    def add(self, piece: str) -> bool:
        """Append a piece. Returns whether the text has a stop string."""
        if self.found or not piece:
            return self.found
        begin = max(0, len(self.text) - self._longest + 1)
        self.text += piece
        places = {stop: place for stop in self.stops if (place := self.text.find(stop, begin)) >= 0}
        if places:
            self.stop = min(places, key=lambda stop: places[stop])
            self.text = self.text[: places[self.stop]]
        return self.found

    def certain(self, size: int) -> int:
        """Of the first `size` characters, those that no later piece can make a part of a stop string."""
        if self.found:
            return min(size, len(self.text))
        tail = self.text[max(0, size - self._longest) : size]
        return size - max((overlap(tail, stop) for stop in self.stops), default=0)


class Place(NamedTuple):
    """Where a token of an answer stands in its text.

    Attributes:
        begin: characters before it.
        size: characters of the text with it.
        kept: whether it begins before a stop string.
    """

    begin: int
    size: int
    kept: bool


class AnswerText:
    """The text of an answer, to which tokens are added in order.

    A stopping criterion adds them in the engine's thread where there are stop strings, else the event loop does, which
    sees each token after the criterion: two threads never add at once, and no token is added twice.

    Args:
        ends: tokens whose text is no part of the answer.

    Attributes:
        places: of the tokens that were added.
    """

    def __init__(self, detokenizer: Detokenizer, search: StopSearch, ends: frozenset[int]) -> None:
        self.search, self.places = search, list[Place]()
        self._detokenizer, self._ends = detokenizer, ends

    def add(self, number: int, token: int) -> None:
        """Add a token, unless as many tokens were added."""
        if number < len(self.places):
            return
        begin = len(self.search.text)
        if token not in self._ends:
            self.search.add(self._detokenizer.add(token))
        size = len(self.search.text)
        self.places.append(Place(begin, size, kept=not self.search.found or begin < size))

    def end(self) -> None:
        """Add what was held back of a character that did not end."""
        self.search.add(self._detokenizer.end())


def overlap(text: str, marker: str) -> int:
    """Characters at the end of a text that may begin a marker."""
    most = min(len(text), len(marker) - 1)
    return next((size for size in range(most, 0, -1) if text.endswith(marker[:size])), 0)
