"""The two ways to send an answer: whole, or as server-sent events while it is decoded.

In both the client's going away ends the texts at the engine's next step. Knows ASGI messages; no format.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from fastapi.responses import JSONResponse, Response

from lade.applications.serve.answer import CutOffError
from lade.applications.serve.connection import ALIVE, EVENTS, REQUEST_NAME, while_there
from lade.applications.serve.errors import APIError, internal, unavailable
from lade.applications.serve.formats import Format
from lade.applications.serve.service import Service

log = logging.getLogger("lade.serve")


class Sent(Response):
    """What both ways share."""

    def __init__(self, service: Service, form: Format) -> None:
        super().__init__()
        self._service, self._answer, self._form = service, form.answer, form


class SentWhole(Sent):
    """Sends the whole answer once it has ended."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            if await while_there(receive, self._answer.finished()):
                await JSONResponse(self._form.body())(scope, receive, send)
        except APIError:
            raise
        except Exception as error:  # whatever ended a text
            raise error_of(error) from error
        finally:
            self._service.cancel(self._answer)


class SentAsEvents(Sent):
    """Sends chunks as they come.

    An error before the first chunk has a status of its own; one behind it is an event: the status is sent by then.
    """

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await while_there(receive, self._send(send))
        except (OSError, TimeoutError):  # the client went away, or does not read
            pass
        finally:
            self._service.cancel(self._answer)

    async def _send(self, send: Callable[[Any], Awaitable[None]]) -> None:
        head = [(b"content-type", EVENTS.encode()), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
        start: dict[str, Any] | None = {"type": "http.response.start", "status": 200, "headers": head}
        loop, seconds = asyncio.get_running_loop(), self._service.settings.send_seconds
        async with asyncio.timeout(None) as sending:  # one for all parts: each would take its time
            async for part in self._events():
                sending.reschedule(loop.time() + seconds)
                if start is not None:
                    await send(start)
                    start = None
                if part:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                sending.reschedule(None)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncIterator[bytes]:
        """What is sent, part by part; an empty one for the status alone."""
        form, settings, now = self._form, self._service.settings, asyncio.get_running_loop().time
        started, begun, last = False, False, now()  # `last`: when something was sent
        try:
            async for deltas in self._answer.deltas(settings.alive_seconds, settings.status_seconds):
                chunks = form.first() if deltas and not begun else []
                chunks += [chunk for delta in deltas for chunk in form.of(delta)]
                part = b"".join(map(form.framed, chunks))
                if not part and started and (not deltas or now() - last >= settings.alive_seconds):
                    part = ALIVE
                started, begun, last = True, begun or bool(deltas), now() if part else last
                yield part
            yield b"".join(map(form.framed, form.last())) + form.closing
        except Exception as error:  # whatever ended a text; a stream that has begun must end in order
            if not started:
                raise error_of(error) from error
            yield form.failed(error_of(error).body(), form.number)


def error_of(error: Exception) -> APIError:
    """The error that a client sees; what is not its own goes to the log alone."""
    if isinstance(error, APIError):
        return error
    if isinstance(error, CutOffError):
        return unavailable()
    log.error("request %s failed", REQUEST_NAME.get(), exc_info=error)
    return internal()
