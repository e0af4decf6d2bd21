"""Runs the application with uvicorn until a signal ends it: running requests get time to finish first."""

from __future__ import annotations

import asyncio
import logging
import socket
from functools import partial
from typing import Any, Protocol

import uvicorn

from lade.applications.serve.bounded import BoundedConnection
from lade.applications.serve.settings import ServeSettings

MARGIN = 5  # seconds for the last events of what is cut off
log = logging.getLogger("lade.serve")


class Answering(Protocol):
    """What answers the requests.

    Attributes:
        texts: that run or wait.
    """

    @property
    def settings(self) -> ServeSettings: ...

    @property
    def texts(self) -> int: ...

    def drain(self) -> None:
        """Take no further requests."""

    async def stop(self) -> None:
        """End what runs."""


class Server(uvicorn.Server):
    """uvicorn's server, whose service takes no requests once it shuts down, and is stopped after its grace.

    Args:
        app: of ASGI.
    """

    def __init__(self, app: Any, service: Answering) -> None:
        settings = service.settings
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                http=partial(BoundedConnection, settings),  # type: ignore[arg-type]  # called as the class is
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=int(settings.grace) + MARGIN,
            )
        )
        self.service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            names = [each.getsockname() for server in self.servers for each in server.sockets]
            log.info("%s is served at %s", self.service.settings.model, ", ".join(map(_address, names)))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.service.drain()
        if self.service.texts:
            log.info(
                "texts that still run: %d; they get %g seconds to finish",
                self.service.texts,
                self.service.settings.grace,
            )
        cutting = asyncio.create_task(self._cut_off())
        await super().shutdown(sockets)
        cutting.cancel()

    async def _cut_off(self) -> None:
        await asyncio.sleep(self.service.settings.grace)
        await self.service.stop()


def _address(name: Any) -> str:
    host, port = name[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
