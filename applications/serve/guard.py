"""What stands before every endpoint: who may ask, from where, and how much. An ASGI middleware.

Requests that no endpoint should see are answered here, before their bodies are read: a wrong Host (a page that rebinds
a name of its own to this machine), a page's Origin that is not allowed, a missing key, a body that is too large or
takes too long.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from lade.applications.serve.connection import (
    REQUEST,
    REQUEST_ID,
    REQUEST_NAME,
    Message,
    Receive,
    Send,
    named,
    send_error,
    send_whole,
)
from lade.applications.serve.errors import (
    FORBIDDEN,
    TIMEOUT,
    TOO_LARGE,
    UNAUTHORIZED,
    UNSUPPORTED,
    APIError,
    internal,
)
from lade.applications.serve.metrics import Metrics
from lade.applications.serve.settings import ServeSettings
from lade.base.shown import shown

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = ("/health", "/", "/page.css", "/page.js")  # paths that need no key
METHODS, HEADERS = "GET, POST, OPTIONS", "Authorization, Content-Type"
KEY = "lade_key"  # of a scope: the name of the request's API key
log = logging.getLogger("lade.serve")


class Guard:
    """The middleware.

    Args:
        paths: those of the endpoints, such as /models/{model}; others are counted together.
    """

    def __init__(self, app: App, settings: ServeSettings, metrics: Metrics, paths: frozenset[str]) -> None:
        self.app, self.settings, self.metrics, self.paths = app, settings, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        origin = headers.get("origin")
        name = named(scope["headers"])
        scope[REQUEST] = name[1].decode()
        REQUEST_NAME.set(scope[REQUEST])
        exchange = _Exchange(send, [name, *self._cors(origin, headers)])
        start = time.perf_counter()
        try:
            self._check_place(headers, origin)
            if scope["method"] == "OPTIONS" and origin is not None:
                await send_whole(exchange.send, 204, b"", *_preflight(headers))
            else:
                scope[KEY] = self._key(scope["path"], headers)
                body = Body(receive, self.settings)
                body.check(_length(headers))
                _check_encoding(headers)
                if await body.read():
                    await self.app(scope, body.receive, exchange.send)
        except APIError as error:
            await exchange.fail(error)
        except Exception:  # whatever failed inside
            log.exception("request %s failed", scope[REQUEST])
            await exchange.fail(internal())
        finally:
            self.metrics.answered(self._endpoint(scope["path"]), exchange.status or 499, time.perf_counter() - start)

    def _endpoint(self, path: str) -> str:
        """The path under which a request is counted."""
        begins = (each for each in self.paths if "{" in each and path.startswith(each.partition("{")[0]))
        return path if path in self.paths else next(begins, "other")

    def _check_place(self, headers: dict[str, str], origin: str | None) -> None:
        host = headers.get("host", "")
        if not self._is_own(host):
            allowed = "an address of this server, localhost or a name given with --allow-host"
            raise APIError(FORBIDDEN, f"the Host header must be {allowed}, got another one", code="host_not_allowed")
        if origin is not None and not self._may_ask(origin, host):
            message = "the Origin header must be one given with --allow-origin, got another one"
            raise APIError(FORBIDDEN, message, code="origin_not_allowed")

    def _is_own(self, host: str) -> bool:
        """Addresses pass: a page can only rebind a name."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in ("localhost", self.settings.host.lower(), *map(str.lower, self.settings.allow_hosts)):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _may_ask(self, origin: str, host: str) -> bool:
        """Whether a page of this origin may ask: the server's own page, and those that are allowed."""
        own = (f"http://{host}", f"https://{host}")
        return origin in own or origin in self.settings.allow_origins or "*" in self.settings.allow_origins

    def _cors(self, origin: str | None, headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
        """The headers that let a page of an allowed origin read the answer."""
        if origin is None or not self.settings.allow_origins or not self._may_ask(origin, headers.get("host", "")):
            return []
        allowed = [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"Origin")]
        return [*allowed, (b"access-control-expose-headers", REQUEST_ID)]

    def _key(self, path: str, headers: dict[str, str]) -> str | None:
        """The name of the request's key; `None` where none is asked for."""
        if self.settings.keys is None or path in OPEN:
            return None
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")  # Anthropic's
        name = None if given is None else self.settings.keys.name(given)
        if name is None:
            message = "the Authorization header must be 'Bearer' and an API key of this server, got none that is"
            headers = {"WWW-Authenticate": "Bearer"}
            raise APIError(UNAUTHORIZED, message, code="invalid_api_key", headers=headers)
        return name


class Body:
    """A request's body, read whole before anything else sees the request.

    Raises:
        APIError: it has too many bytes, or takes too long.
    """

    def __init__(self, receive: Receive, settings: ServeSettings) -> None:
        self._receive, self._settings = receive, settings
        self._parts: list[bytes] = []
        self._told = False

    async def read(self) -> bool:
        """Read it. Returns whether the client is still there."""
        seconds = self._settings.body_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._read()
        except TimeoutError as error:
            raise APIError(TIMEOUT, f"the body must arrive within {seconds:g} seconds, got a part of it") from error

    async def receive(self) -> Message:
        """For the app: the body, then what comes from the client, which is its going away."""
        if self._told:
            return await self._receive()
        self._told = True
        return {"type": "http.request", "body": b"".join(self._parts), "more_body": False}

    async def _read(self) -> bool:
        size = 0
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                return False
            self._parts.append(message.get("body", b""))
            size += len(self._parts[-1])
            self.check(size)
            if not message.get("more_body", False):
                return True

    def check(self, size: int) -> None:
        most = self._settings.body_bytes
        if size > most:
            raise APIError(TOO_LARGE, f"the body must have at most {most} bytes, got more", code="body_too_large")


class _Exchange:
    """The answer to one request, whose status is noted.

    Args:
        extra: headers of every answer.
    """

    def __init__(self, send: Send, extra: list[tuple[bytes, bytes]]) -> None:
        self._send, self._extra = send, extra
        self.status: int | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", []), *self._extra]
        await self._send(message)

    async def fail(self, error: APIError) -> None:
        if self.status is None:
            await send_error(self.send, error)


def _preflight(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    """What a page of an allowed origin may send: the headers that it asks for, also from a public to this network."""
    wanted = headers.get("access-control-request-headers", HEADERS)
    found = [("allow-methods", METHODS), ("allow-headers", wanted), ("max-age", "600")]
    if "access-control-request-private-network" in headers:
        found.append(("allow-private-network", "true"))
    return [(f"access-control-{name}".encode(), value.encode("latin-1")) for name, value in found]


def _check_encoding(headers: dict[str, str]) -> None:
    encoding = headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        message = f"the Content-Encoding header must be identity or left out, got {shown(encoding)}"
        raise APIError(UNSUPPORTED, message)


def _length(headers: dict[str, str]) -> int:
    """What a request says of its body's bytes; 0 where it does not say."""
    told = headers.get("content-length", "")
    return int(told[:19]) if told.isascii() and told.isdigit() else 0
