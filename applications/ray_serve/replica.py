"""One replica: the application of `lade serve` without its guard, whose ASGI messages travel to the front.

Runs inside a Ray actor; knows no Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lade.applications.serve.connection import REQUEST, REQUEST_NAME

if TYPE_CHECKING:
    from lade.applications.serve.service import Service

HEADER = b"x-lade-replica"
log = logging.getLogger("lade.serve")


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that the guard let through.

    Attributes:
        scope: of ASGI, what a replica needs of it.
        body: the whole body.
    """

    scope: dict[str, Any]
    body: bytes


class Replica:
    """Answers requests with a model of its own.

    Args:
        build: loads the model; called once, in the event loop.
        name: tells replicas apart; called once.
    """

    def __init__(self, build: Callable[[], Service], name: Callable[[], str]) -> None:
        from lade.applications.serve.app import create_app

        self._service, self._name = build(), name()
        self._app = create_app(self._service, guarded=False)
        self._service.start()

    async def answer(self, exchange: Exchange, route: Any = None) -> AsyncIterator[list[dict[str, Any]]]:
        """The messages of the answer, those that are there together. The first list is empty: the request is taken.

        Args:
            route: for the router, which sees the arguments.
        """
        running = _Running(self._app, exchange, self._name)
        yield []
        async with contextlib.aclosing(running.messages()) as messages:
            async for found in messages:
                yield found

    async def metrics(self) -> tuple[str, str]:
        """The replica's name, and its page for Prometheus."""
        return self._name, self._service.metrics.page().decode()

    def check_health(self) -> None:
        """Ray replaces a replica that does not decode.

        Raises:
            RuntimeError: it does not.
        """
        if not self._service.healthy:
            raise RuntimeError("the engine does not decode")


class _Running:
    """One request inside the application."""

    def __init__(self, app: Any, exchange: Exchange, name: str) -> None:
        self._app, self._exchange, self._name = app, exchange, name.encode()
        self._sent: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._given = False

    async def messages(self) -> AsyncGenerator[list[dict[str, Any]], None]:
        """What the application sends. Closing this ends the request."""
        task = asyncio.create_task(self._run())
        try:
            while found := await self._next():
                yield found
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _next(self) -> list[dict[str, Any]]:
        """What was sent since the last call, at least one message; none at the end."""
        found = [await self._sent.get()]
        while not self._sent.empty() and found[-1] is not None:
            found.append(self._sent.get_nowait())
        if found[-1] is None:
            self._sent.put_nowait(None)  # for the next call
        return [message for message in found if message is not None]

    async def _run(self) -> None:
        try:
            REQUEST_NAME.set(self._exchange.scope[REQUEST])
            await self._app(self._exchange.scope, self._receive, self._send)
        except Exception:
            log.exception("request %s failed", REQUEST_NAME.get())
        finally:
            self._sent.put_nowait(None)

    async def _receive(self) -> dict[str, Any]:
        if self._given:  # the front ends the request where its client goes away
            await asyncio.Event().wait()
        self._given = True
        return {"type": "http.request", "body": self._exchange.body, "more_body": False}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = message | {"headers": [*message.get("headers", []), (HEADER, self._name)]}
        self._sent.put_nowait(message)
