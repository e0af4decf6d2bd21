"""A bound of the open connections, and of the time for which one may do nothing. Knows uvicorn; no request.

uvicorn's own `limit_concurrency` does not serve: it accepts connections without a bound, counts those that never send
anything, and refuses `/health` with the rest.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from lade.applications.serve.connection import named, send_error
from lade.applications.serve.errors import unavailable
from lade.applications.serve.settings import ServeSettings

SPARE = 16  # connections beyond the bound, on which only the state of the server is told
STATE = "/health"
FULL = "the server has as many connections as it may hold; try again later"


class BoundedConnection(H11Protocol):
    """One connection of a client.

    Where there are as many as there may be, a new one takes the place of the one that has waited longest without a
    request. Where all have requests, it gets status 503. A connection is closed where no request begins in time, and
    cut off where the client does not read the end of its answer in time.
    """

    def __init__(self, settings: ServeSettings, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._settings, self._answer = settings, self.app
        self.app = self._run
        self._running = 0  # requests; more than one where a client sends the next before it has read an answer
        self._spare = False
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

    def _unsupported_upgrade_warning(self) -> None:
        """A client that asks for HTTP/2 or a WebSocket is answered in HTTP/1.1, of which the log need not tell."""

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
