"""Corpora that clients add while the server runs, each key its own: its requests draft from them.

The protocol is SGLang's (/add_external_corpus and its neighbours), except that a request may name one of several.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import uuid4

import lade
from lade.applications.corpora import ALOUD, made, tokenised
from lade.applications.serve.errors import BAD_REQUEST, NOT_FOUND, APIError, bad, busy, unavailable
from lade.drafters import compiling
from lade.memory.corpora import MOST

MOST_CORPORA = 64  # of a key
NAME = "lade.corpus"  # the field of a request


@dataclass(frozen=True, slots=True)
class Added:
    """A corpus and its number of tokens."""

    corpus: lade.Corpus
    tokens: int


@dataclass(slots=True)
class Corpora:
    """The corpora of a server; for any thread.

    Args:
        tokens_of: token ids of a text alone.
        most: tokens of all corpora of a key; 0 where none are taken.
    """

    tokens_of: Callable[[str], list[int]]
    most: int
    _by_key: dict[str | None, dict[str, Added]] = field(default_factory=dict, init=False)
    _making: threading.Lock = field(default_factory=threading.Lock, init=False)

    def add(self, key: str | None, name: str | None, documents: Sequence[str]) -> tuple[str, int]:
        """Make a corpus, in the place of the one of this name, if there is one.

        Returns:
            Its name, and its tokens.

        Raises:
            APIError: it is too large, no corpora are taken, another one is being made, or it is large and machine code
                is still compiled.
        """
        if not self.most:
            message = "this server takes no corpora: --corpus-tokens is 0, or it does not draft from any"
            raise APIError(BAD_REQUEST, message, "documents")
        with self._alone():
            own, name = self._by_key.setdefault(key, {}), name or f"corpus-{uuid4().hex}"
            others = [each for other, each in own.copy().items() if other != name]  # one may be removed meanwhile
            if len(others) >= MOST_CORPORA:
                raise bad("corpus_id", f"one of at most {MOST_CORPORA} corpora of a key", name)
            added = self._made(documents, min(self.most - sum(each.tokens for each in others), MOST))
            own.pop(name, None)
            own[name] = added  # behind the others
        return name, added.tokens

    def _made(self, documents: Sequence[str], left: int) -> Added:
        texts = tokenised(documents, self.tokens_of, left)
        tokens = sum(map(len, texts))
        if not 0 < tokens <= left:
            allowed = f"1 to {left} tokens, as many as --corpus-tokens leaves to this key and a corpus may have"
            got = f"{tokens} or more" if tokens else "none"
            raise APIError(BAD_REQUEST, f"documents must hold {allowed}, got {got}", "documents")
        if tokens > ALOUD and compiling.compiles():  # for minutes, which a server that shuts down would wait for
            raise unavailable("machine code for large corpora is being compiled; try again later")
        return Added(made(texts), tokens)

    def remove(self, key: str | None, name: str) -> None:
        """Requests that decode go on with it. APIError where there is none of this name."""
        if self._by_key.get(key, {}).pop(name, None) is None:
            raise APIError(NOT_FOUND, f"corpus_id must be a corpus of this key, got {name!r}", "corpus_id")

    def tokens(self, key: str | None) -> dict[str, int]:
        """The names and tokens of a key's corpora, the last one added at the end."""
        return {name: each.tokens for name, each in self._by_key.get(key, {}).copy().items()}

    def chosen(self, key: str | None, name: str | None) -> lade.Corpus | None:
        """The corpus of a request: the one that it names, else the last one that its key added, if any.

        Raises:
            APIError: the key has none of this name.
        """
        own = self._by_key.get(key, {}).copy()
        if name is None:
            return next((each.corpus for each in reversed(own.values())), None)
        if name not in own:
            raise bad(NAME, "a corpus that this key added", name)
        return own[name].corpus

    @property
    def total(self) -> int:
        """Tokens of all corpora."""
        return sum(each.tokens for own in self._by_key.copy().values() for each in own.copy().values())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One corpus is made at a time: those that waited would hold the threads that requests need."""
        if not self._making.acquire(blocking=False):
            raise busy("another corpus is being made; try again later")
        try:
            yield
        finally:
            self._making.release()
