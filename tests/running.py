"""A server on a real port, and a gate before an engine's steps."""

from __future__ import annotations

import threading
from typing import Any

from served import CONFIG, NAME

from lade.applications.serve.app import create_app
from lade.applications.serve.build import build_service
from lade.applications.serve.server import Server
from lade.applications.serve.settings import ServeSettings


class Running:
    """A server of uvicorn in a thread of its own, on a free port of the loopback interface.

    Attributes:
        url: where it listens.
    """

    def __init__(self, pair: Any, **settings: Any) -> None:
        asked = ServeSettings(**({"model": NAME, "port": 0, "grace": 60} | settings))
        service = build_service(asked, *pair, config=CONFIG)
        self.server = Server(create_app(service), service)
        self._thread = threading.Thread(target=self.server.run)

    def __enter__(self) -> Running:
        self._thread.start()
        while not self.server.started:
            assert self._thread.is_alive()
            threading.Event().wait(0.005)
        self.url = f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *raised: object) -> None:
        self.server.should_exit = True
        self._thread.join()


class Gate:
    """Lets the engine of a server take steps only when it is told to, until it is opened."""

    def __init__(self, engine: Any) -> None:
        self._step, self._permits, self._open = engine.step, threading.Semaphore(0), False
        self.own = engine.step
        engine.step = self.step

    def step(self) -> bool:
        if not self._open:
            self._permits.acquire()
        return bool(self._step())

    def let(self, steps: int) -> None:
        for _ in range(steps):
            self._permits.release()

    def close(self) -> None:
        self._open, self._permits = False, threading.Semaphore(0)

    def open(self) -> None:
        self._open = True
        self._permits.release(100)
