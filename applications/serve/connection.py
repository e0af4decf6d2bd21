"""A client's connection: what keeps it open, and whether the client is still there. Knows ASGI messages alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

ALIVE = b": keep-alive\n\n"
EVENTS = "text/event-stream"


async def while_there(receive: Callable[[], Awaitable[Any]], work: Coroutine[Any, Any, None]) -> bool:
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


async def _left(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
