"""What clients reach: the guard, then one replica for each request, whose answer it passes on.

Knows ASGI; replicas are an object that it asks. Knows no Ray and no model.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any, Protocol

from lade.applications.ray_serve.pages import together
from lade.applications.ray_serve.replica import Exchange
from lade.applications.ray_serve.routing import Route, route_of
from lade.applications.serve.anthropic.format import MessagesFormat
from lade.applications.serve.connection import ALIVE, EVENTS, REQUEST, Receive, Send, send_whole, while_there
from lade.applications.serve.errors import APIError, unavailable
from lade.applications.serve.formats import ChatFormat, CompletionFormat, Format
from lade.applications.serve.guard import KEY, Guard, Scope
from lade.applications.serve.metrics import CONTENT_TYPE, Metrics
from lade.applications.serve.responses.format import ResponsesFormat
from lade.applications.serve.settings import ServeSettings

FORMATS: dict[str, type[Format]] = {  # of the endpoints that answer, by path
    "/v1/chat/completions": ChatFormat,
    "/v1/completions": CompletionFormat,
    "/v1/responses": ResponsesFormat,
    "/v1/messages": MessagesFormat,
}
CORPORA = ("/add_external_corpus", "/remove_external_corpus", "/list_external_corpora")
TOKENS = ("/tokenize", "/detokenize", "/v1/messages/count_tokens")
MODELS = ("/v1/models", "/v1/models/", "/v1/models/{model}")
PATHS = (*FORMATS, *TOKENS, *CORPORA, *MODELS, "/health", "/metrics", "/openapi.json", "/")
PASSED_ON = ("http_version", "method", "scheme", "path", "raw_path", "query_string", KEY, REQUEST)  # of a scope
HEADERS = (b"content-type", b"accept")  # that replicas see; keys stay here
log = logging.getLogger("lade.serve")


class Replicas(Protocol):
    """The running replicas."""

    def ask(self, exchange: Exchange, route: Route | None) -> AsyncGenerator[list[dict[str, Any]], None]:
        """The messages of one replica's answer. Closing it ends the request there.

        Raises:
            APIError: no replica takes the request, or its replica is gone. No other one is asked then, since the
                request may be what ended it.
        """

    async def running(self) -> int:
        """How many there are."""

    async def pages(self) -> list[tuple[str, str]]:
        """Their names and pages for Prometheus."""


class Front:
    """The application that serves the replicas.

    Attributes:
        app: of ASGI.
        texts: requests that run or wait.
    """

    def __init__(self, settings: ServeSettings, replicas: Replicas) -> None:
        self.settings, self.replicas, self.metrics = settings, replicas, Metrics()
        self.app = Guard(self._answer, settings, self.metrics, frozenset(PATHS))
        self._relays: set[asyncio.Task[Any]] = set()
        self._closing = self._stopped = False

    @property
    def texts(self) -> int:
        return len(self._relays)

    def drain(self) -> None:
        """Take no further requests."""
        self._closing = True

    async def stop(self) -> None:
        """End what runs, and say so in the log. A second call does nothing."""
        if self._relays and not self._stopped:
            log.warning("requests cut off by the shutdown: %d", len(self._relays))
        self._closing = self._stopped = True
        for relay in list(self._relays):
            relay.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        elif (scope["method"], scope["path"]) == ("GET", "/health"):
            await self._health(send)
        elif (scope["method"], scope["path"]) == ("GET", "/metrics"):
            page = together(self.metrics.page().decode(), await self.replicas.pages())
            await send_whole(send, 200, page, kind=CONTENT_TYPE)
        else:
            await self._pass_on(scope, receive, send)

    async def _health(self, send: Send) -> None:
        if self._closing or not await self.replicas.running():
            raise unavailable("the server does not decode")
        await send_whole(send, 200, b'{"status":"ok"}')

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._closing:
            raise unavailable()
        body = (await receive())["body"]  # whole: the guard has read it
        headers = [(name, value) for name, value in scope["headers"] if name.lower() in HEADERS]
        own = {name: scope[name] for name in PASSED_ON if name in scope} | {"type": "http", "headers": headers}
        tenant = self.settings.tenant(scope.get(KEY)) if scope["path"] in FORMATS else None
        route = route_of(tenant, self.settings.keys is not None, body)
        relay = _Relay(scope["path"], send, self.settings.send_seconds)
        with suppress(OSError, TimeoutError):  # the client went away, or does not read
            await while_there(receive, self._relay(relay, Exchange(own, body), route))

    async def _relay(self, relay: _Relay, exchange: Exchange, route: Route | None) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        try:
            async with aclosing(self.replicas.ask(exchange, route)) as answer:
                async for messages in answer:
                    await relay.send(messages)
        except APIError as error:
            await relay.fail(error)
        except asyncio.CancelledError:
            if not self._stopped:
                raise
            task.uncancel()
            await relay.fail(unavailable())
        finally:
            self._relays.discard(task)


class _Relay:
    """Passes the messages of one answer on to the client.

    Args:
        seconds: that the client may take to read a message.
    """

    def __init__(self, path: str, send: Send, seconds: float) -> None:
        self._path, self._send, self._seconds = path, send, seconds
        self._begun = self._as_events = False
        self._events = 0  # that were sent

    async def send(self, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            self._note(message)
            async with asyncio.timeout(self._seconds):
                await self._send(message)

    async def fail(self, error: APIError) -> None:
        """End the answer with an error: its own status, or behind the first event an event of its own."""
        if not self._begun:
            raise error
        if self._as_events:
            event = FORMATS[self._path].failed(error.body(), self._events)
            await self.send([{"type": "http.response.body", "body": event, "more_body": False}])
        # else the connection is closed, since the rest of a body is missing

    def _note(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._begun = True
            self._as_events = any(value.startswith(EVENTS.encode()) for _, value in message["headers"])
        elif self._as_events:
            body = message.get("body", b"")
            self._events += body.count(b"\n\n") - body.count(ALIVE)


async def _lifespan(receive: Receive, send: Send) -> None:
    for moment in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{moment}.complete"})
