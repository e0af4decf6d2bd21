"""Open connections are bounded in number, in their heads and in the time for which one may do nothing."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from lade.applications.serve.bounded import HEAD_BYTES, SPARE, BoundedConnection
from lade.applications.serve.settings import ServeSettings

OFFER = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
POST = "POST / HTTP/1.1\r\nHost: localhost\r\n"
LARGE = b"x" * (1 << 24)  # more than the buffers of two sockets


class Listening:
    """A port whose connections are bounded, and whose answers wait for a gate.

    Attributes:
        open: those that the server holds.
    """

    def __init__(self, **settings: Any) -> None:
        self.settings = ServeSettings(model="none", **settings)
        self.config, self.state, self.gate = (
            Config(self._app, interface="asgi3", log_config=None),
            ServerState(),
            asyncio.Event(),
        )
        self.open = self.state.connections
        self._clients = list[asyncio.StreamWriter]()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["query_string"] == b"waits":
            await self.gate.wait()
        body = LARGE if scope["path"] == "/large" else await _body(receive) or b"done"
        head = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        if scope["query_string"] == b"begins":
            await self.gate.wait()
        await send({"type": "http.response.body", "body": body})

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Listening"]:
        def made() -> BoundedConnection:
            return BoundedConnection(self.settings, config=self.config, server_state=self.state, app_state={})

        server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            self.gate.set()
            server.close()
            for writer in self._clients:
                writer.transport.abort()
            await until(lambda: not self.open and not self.state.tasks)
            await asyncio.sleep(0.01)  # asyncio closes sockets in its next turns

    async def connect(self, sent: str = "") -> asyncio.StreamReader:
        before = len(self.state.connections)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._clients.append(writer)
        writer.write(sent.encode("latin-1"))
        await until(lambda: before < len(self.open) or reader.at_eof() or before >= self.settings.connections)
        return reader

    def send(self, text: str) -> None:
        """Further bytes of the last client."""
        self._clients[-1].write(text.encode("latin-1"))

    async def ask(self, path: str) -> asyncio.StreamReader:
        return await self.connect(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")


async def _body(receive: Any) -> bytes:
    found, message = b"", {"more_body": True}
    while message.get("more_body"):
        message = await receive()
        found += message.get("body", b"")
    return found


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.001)


async def answered(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The head and the body of an answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.lower().splitlines() if line.startswith(b"content-length:")), -1)
    return head, await (reader.readexactly(length) if length >= 0 else reader.read())


def using(work: Callable[[Listening], Awaitable[None]], **settings: Any) -> None:
    async def use() -> None:
        async with asyncio.timeout(20), Listening(**settings).listening() as port:
            await work(port)

    asyncio.run(use())


def test_a_new_connection_takes_the_place_of_the_oldest_that_waits() -> None:
    async def work(port: Listening) -> None:
        busy = await port.ask("/?waits")
        first, second = [await port.connect() for _ in range(2)]
        head, body = await answered(await port.ask("/"))
        assert head.startswith(b"HTTP/1.1 200")
        assert body == b"done"
        assert await first.read() == b""
        assert not second.at_eof()
        assert len(port.open) == 3
        port.gate.set()
        assert (await answered(busy))[1] == b"done"

    using(work, connections=3)


def test_where_all_have_requests_only_the_state_is_told() -> None:
    async def work(port: Listening) -> None:
        busy = [await port.ask("/?waits") for _ in range(2)]
        await until(lambda: len(port.state.tasks) == 2)
        head, body = await answered(await port.ask("/"))
        assert head.startswith(b"HTTP/1.1 503")
        assert b"retry-after: " in head.lower()
        assert b"x-request-id: " in head.lower()
        assert json.loads(body[body.index(b"{") : body.rindex(b"}") + 1])["error"]["type"] == "server_error"
        assert (await answered(await port.ask("/health")))[1] == b"done"
        port.gate.set()
        assert [(await answered(each))[1] for each in busy] == [b"done"] * 2
        assert (await answered(await port.ask("/")))[1] == b"done"

    using(work, connections=2)


def test_there_are_never_more_than_the_bound_and_the_spare_ones() -> None:
    async def work(port: Listening) -> None:
        for _ in range(2):
            await port.ask("/?waits")
        await until(lambda: len(port.state.tasks) == 2)
        for _ in range(SPARE):
            await port.ask("/health?waits")
        await until(lambda: len(port.state.tasks) == 2 + SPARE)
        assert await (await port.connect()).read() == b""
        assert len(port.open) == 2 + SPARE

    using(work, connections=2, head_seconds=60)


def test_a_client_that_offers_another_protocol_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    """As Java's does, HTTP/2. uvicorn would tell at each request what to install for WebSockets."""

    async def work(port: Listening) -> None:
        asked = f"GET / HTTP/1.1\r\nHost: localhost\r\n{OFFER}\r\n"
        for requests in (1, 2):
            reader = await port.connect(asked * requests)
            for _ in range(requests):
                assert (await answered(reader))[1] == b"done"

    using(work)
    assert not caplog.records


@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_a_body_beside_an_offer_is_read(pieces: int) -> None:
    async def work(port: Listening) -> None:
        asked = f"{POST}{OFFER}Content-Length: 9\r\n\r\nsome body"
        for end in ("", f"{POST}Content-Length: 5\r\n\r\nother"):
            text = asked + end
            reader = await port.connect(text[: len(text) // pieces])
            for begin in range(len(text) // pieces, len(text), 7):
                await asyncio.sleep(0)
                port.send(text[begin : begin + 7])
            assert (await answered(reader))[1] == b"some body"
            if end:
                assert (await answered(reader))[1] == b"other"

    using(work)


@pytest.mark.parametrize("sent", ["", "GET / HT"])
def test_a_connection_without_a_request_is_closed(sent: str) -> None:
    async def work(port: Listening) -> None:
        assert await (await port.connect(sent)).read() == b""
        await until(lambda: not port.open)

    using(work, head_seconds=0.01)


def test_a_request_may_take_longer_than_its_head() -> None:
    async def work(port: Listening) -> None:
        slow = await port.ask("/?waits")
        assert await (await port.connect()).read() == b""  # which was opened later, and is closed
        port.gate.set()
        assert (await answered(slow))[1] == b"done"

    using(work, head_seconds=0.2)


def test_a_client_that_does_not_read_its_answer_is_cut_off() -> None:
    async def work(port: Listening) -> None:
        reader = await port.ask("/large")
        await until(lambda: bool(port.open))
        await until(lambda: not port.open)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await answered(reader)

    using(work, head_seconds=0.1, send_seconds=0.05)


CHUNKED = POST + "Transfer-Encoding: chunked\r\n\r\n"
LONG = "x" * (HEAD_BYTES + 1)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ("EHLO mail\r\n\r\n", 400),
        ("CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        ("GET /\xe9 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (POST + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (POST + "Content-Length: -4\r\n\r\n", 400),
        (CHUNKED + "zz\r\n", 400),
        ("GET /" + LONG, 431),
        ("GET / HTTP/1.1\r\nLong: " + LONG, 431),
        ("GET / HTTP/1.1\r\n" + LONG, 431),
        ("GET / HTTP/1.1\r\n" + "a: b\r\n" * HEAD_BYTES, 431),
        (CHUNKED + "0\r\nTrailer: " + LONG, 431),
        (CHUNKED + "1;" + LONG, 431),
    ],
)
def test_what_is_no_request_is_refused(sent: str, status: int) -> None:
    async def work(port: Listening) -> None:
        head, body = await answered(await port.connect(sent))
        assert head.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"connection: close" in head
        assert json.loads(body)["error"]["message"].startswith("the ")
        await until(lambda: not port.open and not port.state.tasks)

    using(work)


def test_many_small_parts_of_a_body_are_no_long_head() -> None:
    async def work(port: Listening) -> None:
        reader = await port.connect(CHUNKED + "1\r\nx\r\n" * HEAD_BYTES + "0\r\n\r\n")
        assert (await answered(reader))[1] == b"x" * HEAD_BYTES

    using(work)


def test_heads_of_several_requests_are_no_long_head() -> None:
    async def work(port: Listening) -> None:
        reader = await port.connect()
        for _ in range(3):
            port.send(f"GET / HTTP/1.1\r\nHost: localhost\r\nLong: {'x' * (HEAD_BYTES // 2)}\r\n\r\n")
            assert (await answered(reader))[1] == b"done"

    using(work)


def test_a_refusal_does_not_stand_inside_an_answer() -> None:
    async def work(port: Listening) -> None:
        reader = await port.ask("/?begins")
        await reader.readuntil(b"\r\n\r\n")
        port.send("no HTTP\r\n\r\n")
        assert await reader.read() == b""

    using(work)
