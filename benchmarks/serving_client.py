"""A server of `lade serve` in a process of its own, and a client that costs little.

The client shares the machine with the server, so while an answer comes it notes times and bytes only; chunks and events
are read once it has ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from urllib.request import Request, urlopen

ADDRESS = re.compile(r" is served at http://([^:]+):(\d+)")
END = b"0\r\n\r\n"  # of a body in chunks
EVENT, DONE = b"data: ", b"[DONE]"
START_SECONDS, STOP_SECONDS = 300, 30


@dataclass(frozen=True)
class Event:
    """One server-sent event: when it came, by `time.perf_counter`, and its data."""

    at: float
    data: dict[str, Any]

    @property
    def tokens(self) -> int:
        """Those that its step emitted."""
        return int(self.data.get("lade", {}).get("tokens", 0))


@dataclass(frozen=True)
class Answer:
    """A streamed answer.

    Attributes:
        sent: when the request was, by `time.perf_counter`.
    """

    sent: float
    events: Sequence[Event]

    @property
    def first_seconds(self) -> float:
        return next(event.at for event in self.events if event.tokens) - self.sent

    @property
    def seconds(self) -> float:
        """To the last token."""
        return self._times[-1] - self.sent

    @property
    def tokens(self) -> int:
        return sum(event.tokens for event in self.events)

    def gaps(self, since: float = 0.0) -> list[float]:
        """Seconds between the arrivals of tokens, from a time on."""
        return [later - earlier for earlier, later in pairwise(sorted({at for at in self._times if at >= since}))]

    @property
    def text(self) -> str:
        choices = [choice for event in self.events for choice in event.data.get("choices", ())]
        return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)

    @property
    def speculation(self) -> dict[str, Any]:
        """The field `speculative_decoding` of the last event."""
        return dict(self.events[-1].data["metrics"]["speculative_decoding"])

    @property
    def cached_tokens(self) -> int:
        return int(self.events[-1].data["usage"]["prompt_tokens_details"]["cached_tokens"])

    @property
    def _times(self) -> list[float]:
        return [event.at for event in self.events if event.tokens]


class Exchange(asyncio.Protocol):
    """One request: notes what comes, and when, until the body has ended."""

    def __init__(self, ended: asyncio.Future[None], on_data: Callable[[int], None]) -> None:
        self.parts: list[tuple[float, bytes]] = []
        self._ended, self._on_data = ended, on_data

    def data_received(self, data: bytes) -> None:
        self.parts.append((time.perf_counter(), data))
        self._on_data(len(self.parts))
        if data.endswith(END) and not self._ended.done():
            self._ended.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


@dataclass
class Client:
    """Asks one server for streams."""

    host: str
    port: int
    headers: str = field(init=False)

    def __post_init__(self) -> None:
        self.headers = f"host: {self.host}:{self.port}\r\ncontent-type: application/json\r\nconnection: close\r\n"

    async def ask(self, path: str, on_data: Callable[[int], None] = lambda parts: None, **fields: Any) -> Answer:
        """An answer of a path, greedy unless asked otherwise.

        Args:
            on_data: called for each piece that comes, with the number of pieces.

        Raises:
            ConnectionError: the server refused the request, or went away.
        """
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        asked = {"temperature": 0} | fields | stream
        asked["lade"] = {"steps": True} | fields.get("lade", {})
        body = json.dumps(asked).encode()
        head = f"POST {path} HTTP/1.1\r\n{self.headers}content-length: {len(body)}\r\n\r\n".encode()
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        sent = time.perf_counter()
        transport, exchange = await loop.create_connection(lambda: Exchange(ended, on_data), self.host, self.port)
        try:
            transport.write(head + body)
            await ended
        finally:
            transport.close()
        return Answer(sent, list(events_of(exchange.parts)))

    def post(self, path: str, **fields: Any) -> Any:
        """A whole answer in JSON. `OSError` where the server refuses the request."""
        headers = {"content-type": "application/json"}
        request = Request(f"http://{self.host}:{self.port}{path}", json.dumps(fields).encode(), headers)
        with urlopen(request) as answer:
            return json.load(answer)

    async def complete(self, prompt: str | Sequence[int], max_tokens: int, **fields: Any) -> Answer:
        return await self.ask("/v1/completions", prompt=prompt, max_tokens=max_tokens, **fields)

    async def chat(self, text: str, max_tokens: int, **fields: Any) -> Answer:
        messages = [{"role": "user", "content": text}]
        return await self.ask("/v1/chat/completions", messages=messages, max_tokens=max_tokens, **fields)


def events_of(parts: Sequence[tuple[float, bytes]]) -> Iterator[Event]:
    """The events of an answer in chunks. Each came with the piece that has its last byte.

    Raises:
        ConnectionError: the answer has another status than 200, an error among its events, or no end.
    """
    whole = b"".join(data for _, data in parts)
    head, _, body = whole.partition(b"\r\n\r\n")
    if not (head.startswith(b"HTTP/1.1 200") and whole.endswith(END)):
        raise ConnectionError(f"the server must send a whole stream, got {whole.decode()!r}")
    arrivals = _arrivals(parts)
    position, at = len(head) + 4, 0.0
    while body:
        line, _, rest = body.partition(b"\r\n")
        size = int(line, 16)
        position += len(line) + 2 + size + 2
        while arrivals[0][0] < position:
            arrivals.pop(0)
        at, text, body = arrivals[0][1], rest[:size], rest[size + 2 :]
        for event in text.split(b"\n\n"):
            if event.startswith(EVENT) and not event.endswith(DONE):
                yield _event(at, event)


def _arrivals(parts: Sequence[tuple[float, bytes]]) -> list[tuple[int, float]]:
    """Bytes that had come by each time."""
    found, size = list[tuple[int, float]](), 0
    for at, data in parts:
        size += len(data)
        found.append((size, at))
    return found


def _event(at: float, event: bytes) -> Event:
    data = json.loads(event.removeprefix(EVENT))
    if "error" in data:
        raise ConnectionError(data["error"]["message"])
    return Event(at, data)


async def in_turn(clients: int, asks: Sequence[Callable[[], Awaitable[Answer]]]) -> list[Answer]:
    """All answers, of so many clients: each asks for the next one as soon as its last one has ended."""
    waiting = iter(asks)

    async def client() -> list[Answer]:
        return [await ask() for ask in waiting]

    return [answer for found in await asyncio.gather(*(client() for _ in range(clients))) for answer in found]


@contextmanager
def served(model: str, *options: str) -> Iterator[Client]:
    """`lade serve` on a free port of the loopback interface, until the block ends.

    Raises:
        RuntimeError: it does not start.
    """
    command = [sys.executable, "-m", "lade", "serve", model, "--port", "0", "--grace", "0", *options]
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield Client(*_address(process, log))
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _address(process: subprocess.Popen[bytes], log: Any) -> tuple[str, int]:
    """Where a server listens, once it says so."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        found = ADDRESS.search(_read(log))
        if found is not None:
            return found[1], int(found[2])
        time.sleep(0.05)
    raise RuntimeError(f"the server did not start: {_read(log)}")


def _read(log: Any) -> str:
    """What a file holds; the server's own place in it stays."""
    return os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0).decode()
