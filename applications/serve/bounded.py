"""Bounds of the open connections, of their heads and of the time for which one may do nothing. Knows uvicorn; no
request.

uvicorn's own `limit_concurrency` does not serve: it accepts connections without a bound, counts those that never send
anything, and refuses `/health` with the rest.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from lade.applications.serve.connection import JSON, named, send_error
from lade.applications.serve.errors import BAD_REQUEST, HEAD_TOO_LARGE, APIError, unavailable
from lade.applications.serve.settings import ServeSettings

SPARE = 16  # connections beyond the bound, on which only the state of the server is told
STATE = "/health"
HEAD_BYTES = 1 << 16
FULL = "the server has as many connections as it may hold; try again later"


class BoundedConnection(HttpToolsProtocol):
    """One connection of a client.

    Where there are as many as there may be, a new one takes the place of the one that has waited longest without a
    request. Where all have requests, it gets status 503. A connection is closed where no request begins in time, and
    cut off where the client does not read the end of its answer in time. What is no HTTP, and a head that is too long,
    are refused.
    """

    def __init__(self, settings: ServeSettings, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._settings, self._answer = settings, self.app
        self.app = self._run
        self._running = 0  # requests; more than one where a client sends the next before it has read an answer
        self._spare = False
        self._unread = 0  # bytes since the last part of a body, or the last end of a request
        self._timer: asyncio.TimerHandle | None = None
        self._since = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > self._settings.connections:
            self._take_a_place()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._unread += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._refuse(BAD_REQUEST, "the request must be HTTP/1.1, got another text")
        if self._unread > HEAD_BYTES and not self.transport.is_closing():
            self._refuse(HEAD_TOO_LARGE, f"the head of a request must have at most {HEAD_BYTES} bytes, got more")

    def _parse(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                data = b""
            except httptools.HttpParserUpgrade as offer:
                data = self._without_offer() + data[offer.args[0] :]

    def _without_offer(self) -> bytes:
        """The head of a request without its offer of another protocol, which is not taken, for a new parser: beside an
        offer, as Java's client makes one, the old one leaves out the body.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise httptools.HttpParserInvalidMethodError("no proxy")
        first = b"%b %b HTTP/%b" % (method, self.url, self.parser.get_http_version().encode())
        self.parser = httptools.HttpRequestParser(self)
        return b"\r\n".join([first, *(b"%b: %b" % each for each in self.headers if each[0] != b"upgrade"), b"", b""])

    def on_headers_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread = 0
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _refuse(self, status: int, message: str) -> None:
        """End the connection; tell why, unless this would stand inside an answer."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = json.dumps(APIError(status, message).body()).encode()
            head = {"content-type": JSON, "content-length": len(body), "connection": "close"}
            lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
            self.transport.write(STATUS_LINE[status] + lines.encode() + b"\r\n" + body)
        self.transport.close()

    def _take_a_place(self) -> None:
        others = [each for each in self.connections if isinstance(each, BoundedConnection) and each is not self]
        waiting = [each for each in others if each.waits]
        if waiting:
            min(waiting, key=lambda each: each._since).cut_off()
        elif len(self.connections) > self._settings.connections + SPARE:
            self.cut_off()
        else:
            self._spare = True

    @property
    def waits(self) -> bool:
        """Whether the connection has no request."""
        return not self._running

    def cut_off(self) -> None:
        """Close the connection without sending what was not sent."""
        self.connections.discard(self)
        self.transport.abort()

    async def _run(self, scope: Any, receive: Any, send: Any) -> None:
        self._stop_waiting()
        self._running += 1
        try:
            if self._spare and scope["path"] != STATE:
                await send_error(send, unavailable(FULL), named(scope["headers"]), (b"connection", b"close"))
            else:
                await self._answer(scope, receive, send)
        finally:
            self._running -= 1
            if not self._running and self in self.connections:
                self._wait()

    def _wait(self) -> None:
        """Wait for the next request, and for the client to read what is not sent yet."""
        self._since = self.loop.time()
        self._timer = self.loop.call_later(self._settings.head_seconds, self._close)

    def _close(self) -> None:
        self.transport.close()  # once all is sent
        self._timer = self.loop.call_later(self._settings.send_seconds, self.cut_off)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
