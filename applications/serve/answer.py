"""One HTTP request's texts while they are decoded: the updates of the engine thread become deltas of text.

Lives in the event loop. Knows requests of the engine and tokens; no endpoint's format.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import lade
from lade.applications.serve.text import AnswerText
from lade.applications.serve.worker import Update
from lade.core.logprobs import TokenLogprob

STOP, LENGTH = "stop", "length"


class Told(NamedTuple):
    """A token whose log probability is told, and the characters of the answer before it."""

    begin: int
    noted: TokenLogprob


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new of one text.

    Attributes:
        index: of the text among those of its HTTP request.
        text: characters that no later token changes.
        tokens: log probabilities of the tokens that begin in it, where they are asked for.
        count: tokens that the step emitted.
        finish: why the text ended; `None` while it goes on.
    """

    index: int
    text: str
    tokens: list[Told]
    count: int
    finish: str | None


@dataclass(eq=False)
class Choice:
    """One text.

    Attributes:
        request: of the engine.
        whole: its text, with what is held back.
        text: all that was told of it.
        logprobs: of the tokens that were told.
        finish: why it ended.
    """

    index: int
    request: lade.Request
    whole: AnswerText
    ends: frozenset[int]
    most: int
    finish: str | None = None
    logprobs: list[Told] = field(default_factory=list)
    _taken: int = 0  # tokens
    _told: int = 0  # characters
    _held: list[Told] = field(default_factory=list)

    @property
    def text(self) -> str:
        return self.whole.search.text[: self._told]

    def take(self, update: Update) -> Delta:
        for place, token in enumerate(update.tokens[: self._room(update)]):
            self._add(token, update.logprobs[place] if update.logprobs else None)
        if update.ended:
            self.whole.end()
            self.finish = STOP if self.whole.search.found or self._at_end() else LENGTH
        text, tokens = self._release()
        return Delta(self.index, text, tokens, len(update.tokens), self.finish)

    def _room(self, update: Update) -> int:
        """Tokens that are told: none where only the prompt is asked for."""
        return len(update.tokens) if self.most else 0

    def _add(self, token: int, noted: TokenLogprob | None) -> None:
        self.whole.add(self._taken, token)
        place = self.whole.places[self._taken]
        self._taken += 1
        if noted is not None and place.kept:
            self._held.append(Told(place.begin, noted))

    def _at_end(self) -> bool:
        return self.most > 0 and self.request.emitted > 0 and self.request.tokens[-1] in self.ends

    def _release(self) -> tuple[str, list[Told]]:
        """The text that is certain, and the tokens that begin in it or before its end."""
        begin, search = self._told, self.whole.search
        if self.finish is not None:
            self._told = len(search.text)
        elif self._taken:
            self._told = search.certain(self.whole.places[self._taken - 1].size)
        out = [each for each in self._held if each.begin < self._told or self.finish is not None]
        self._held = self._held[len(out) :]
        self.logprobs += out
        return search.text[begin : self._told], out


class Answer:
    """The texts of one HTTP request.

    Args:
        choices: in order of their indices.
        per_prompt: texts of one prompt, which follow one another.
        start: when the request came, by `time.perf_counter`.

    Attributes:
        begun: whether any token has come.
    """

    def __init__(self, choices: Sequence[Choice], per_prompt: int, start: float) -> None:
        self.choices, self.per_prompt, self.start = list(choices), per_prompt, start
        self.begun = False
        self._inbox: list[tuple[Choice, Update]] = []
        self._arrival: asyncio.Future[bool] | None = None  # whether something came, while somebody waits for it
        self._left = len(self.choices)

    def put(self, choice: Choice, update: Update) -> None:
        """Take an update of a text; called in the event loop."""
        self._inbox.append((choice, update))
        _settle(self._arrival, True)

    async def deltas(self, seconds: float | None, at_first: float | None = None) -> AsyncIterator[list[Delta]]:
        """What is new, as soon as there is something; an empty list after this many seconds without.

        Args:
            seconds: `None` for no such list.
            at_first: for the first list alone, where it differs.

        Raises:
            Exception: what ended one of the texts.
        """
        wait = seconds if at_first is None else at_first
        while self._left:
            came = bool(self._inbox) or await self._arrived(wait)
            wait = seconds
            if not came:
                yield []
                continue
            found, self._inbox = self._inbox, []  # a slow reader gets several steps at once
            yield [self._taken(choice, update) for choice, update in found]

    async def _arrived(self, seconds: float | None) -> bool:
        """Wait for an update. Returns whether one came in time; costs less than `asyncio.timeout`, once per step."""
        loop = asyncio.get_running_loop()
        self._arrival = arrival = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _settle, arrival, False)
        try:
            return await arrival
        finally:
            self._arrival = None
            if timer is not None:
                timer.cancel()

    async def finished(self) -> None:
        """Wait until all texts have ended.

        Raises:
            Exception: what ended one of them.
        """
        async for _ in self.deltas(None):
            pass

    def _taken(self, choice: Choice, update: Update) -> Delta:
        if update.ended:
            self._left -= 1
            if choice.request.error is not None:
                raise choice.request.error
            if choice.request.cancelled:
                raise CutOffError
        return choice.take(update)


def _settle(arrival: asyncio.Future[bool] | None, came: bool) -> None:
    if arrival is not None and not arrival.done():
        arrival.set_result(came)


class CutOffError(Exception):
    """The server ended a text: it shuts down, or the engine failed."""
