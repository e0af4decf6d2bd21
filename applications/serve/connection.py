"""A client's connection: whole answers, their requests' names, what keeps it open, whether the client is still there.

Knows ASGI's messages and the errors that clients see.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from contextvars import ContextVar
from typing import Any

from lade.applications.serve.errors import APIError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]

ALIVE = b": keep-alive\n\n"
EVENTS, JSON = "text/event-stream", "application/json"
REQUEST_ID = b"x-request-id"
REQUEST = "lade_request"  # of a scope: the name of the request
REQUEST_NAME = ContextVar("request", default="without a name")  # of the request that is answered, for the log
SANE = re.compile(rb"[!-~]{1,128}")  # a request's own name, as its answer may repeat it


def named(headers: Iterable[Header]) -> Header:
    """The header of an answer that names its request: by the name that came with it, or a new one."""
    given = next((value for name, value in headers if name.lower() == REQUEST_ID), b"")
    return REQUEST_ID, given if SANE.fullmatch(given) else uuid.uuid4().hex.encode()


async def send_whole(send: Send, status: int, body: bytes, *headers: Header, kind: str = JSON) -> None:
    """Send an answer whose body is known, of this content type."""
    head = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: APIError, *headers: Header) -> None:
    own = [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    await send_whole(send, error.status, json.dumps(error.body()).encode(), *headers, *own)


async def while_there(receive: Receive, work: Coroutine[Any, Any, None]) -> bool:
    """Do something until the client goes away. Returns whether it was done."""
    doing = asyncio.create_task(work)
    leaving = asyncio.create_task(_left(receive))
    try:
        await asyncio.wait((doing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            return False
        doing.result()
        return True
    finally:
        for task in (doing, leaving):
            task.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
