"""What clients reach, with replicas that need no Ray: scripted ones, and one that decodes in this process."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from served import CONFIG, NAME, PROMPT, events
from served import Exchange as Call

import lade
from lade.applications.ray_serve.front import PATHS, Front
from lade.applications.ray_serve.replica import Exchange, Replica
from lade.applications.ray_serve.routing import Route
from lade.applications.serve.app import create_app
from lade.applications.serve.build import build_service
from lade.applications.serve.connection import REQUEST
from lade.applications.serve.errors import busy, unavailable
from lade.applications.serve.keys import Keys
from lade.applications.serve.penalties import Penalties
from lade.applications.serve.settings import ServeSettings

KEY = "a-key-0123456789"
SETTINGS = ServeSettings(model=NAME, slots=4)
STREAM = [(b"content-type", b"text/event-stream")]
WHOLE = [(b"content-type", b"application/json")]


def head(headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": 200, "headers": headers}


def part(body: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


class Scripted:
    """One replica that sends these messages, then fails or goes on for ever.

    Attributes:
        asked: the requests and routes that came.
        ended: how often an answer was closed.
    """

    def __init__(self, *messages: dict[str, Any], error: Exception | None = None, running: int = 1) -> None:
        self.messages, self.error, self.count = messages, error, running
        self.asked: list[tuple[Exchange, Route | None]] = []
        self.ended = 0

    async def ask(self, exchange: Exchange, route: Route | None) -> AsyncGenerator[list[dict[str, Any]], None]:
        self.asked.append((exchange, route))
        try:
            for message in self.messages:
                yield [message]
            if self.error is not None:
                raise self.error
            if not self.messages or self.messages[-1].get("more_body", True):
                await asyncio.Event().wait()
        finally:
            self.ended += 1

    async def running(self) -> int:
        return self.count

    async def pages(self) -> list[tuple[str, str]]:
        page = "# HELP lade_texts Texts.\n# TYPE lade_texts gauge\nlade_texts 2.0\n"
        return [("a", page), ("b", page.replace("2.0", "3.0"))]


@contextmanager
def client_of(replicas: Any, settings: ServeSettings = SETTINGS) -> Iterator[tuple[TestClient, Front]]:
    front = Front(settings, replicas)
    with TestClient(front.app, base_url="http://localhost") as client:
        yield client, front


def run(client: TestClient, work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work(), 60)

    assert client.portal is not None
    client.portal.call(bounded)


def call(front: Front, path: str = "/v1/completions", **others: Any) -> Call:
    return Call(front.app, path, json.dumps({"prompt": "x"}).encode(), **others)


class Here:
    """A replica in this process."""

    def __init__(self) -> None:
        self.replica: Replica | None = None

    async def ask(self, exchange: Exchange, route: Route | None) -> AsyncGenerator[list[dict[str, Any]], None]:
        self.replica = self.replica or Replica(self.build, lambda: "here")
        answer = self.replica.answer(exchange, route)
        try:
            assert await anext(answer) == []
            async for messages in answer:
                yield messages
        finally:
            await answer.aclose()  # type: ignore[attr-defined]

    def build(self) -> Any:
        self.service = build_service(SETTINGS, *lade.models.load(NAME, dtype="float32"), config=CONFIG)
        return self.service

    async def running(self) -> int:
        return 1

    async def pages(self) -> list[tuple[str, str]]:
        assert self.replica is not None
        self.replica.check_health()
        return [await self.replica.metrics()]


def test_a_replica_decodes() -> None:
    here, fields = Here(), {"prompt": PROMPT, "temperature": 0, "max_tokens": 12}
    with client_of(here) as (client, front):
        whole = client.post("/v1/completions", json=fields)
        stream = client.post("/v1/completions", json=fields | {"stream": True})
        wrong = client.post("/v1/completions", json=fields | {"temperature": 9})
        missing, posted = client.get("/v1/nothing"), client.post("/health")
        page = client.get("/")
        long = fields | {"stream": True, "max_tokens": 1500, "logit_bias": {"0": -100}}
        leaving = Call(front.app, "/v1/completions", json.dumps(long).encode())

        async def leave() -> None:
            async def soon() -> None:
                leaving.leave()

            leaving.on_part = soon
            await leaving.run()
            while here.service.texts:
                await asyncio.sleep(0.001)
            scope = {"type": "http", "method": "GET", "path": "/v1/models", "query_string": b"", "headers": []}
            scope |= {REQUEST: "mine"}
            (messages,) = [messages async for messages in here.ask(Exchange(scope, b""), None)]
            assert [message["type"] for message in messages] == ["http.response.start", "http.response.body"]
            await here.service.stop()

        metrics = client.get("/metrics").text
        run(client, leave)
    assert whole.headers["x-lade-replica"] == "here"
    assert all(len(each.headers["x-request-id"]) == 32 for each in (whole, stream, wrong, missing, page))
    *parts, last = events(stream.text)
    assert "".join(each["choices"][0]["text"] for each in parts) == whole.json()["choices"][0]["text"]
    assert last == "[DONE]"
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "temperature"
    assert (missing.status_code, posted.status_code) == (404, 405)
    assert "<html" in page.text
    assert 'lade_generated_tokens_total{replica="here"} 24.0' in metrics
    assert 'lade_requests_total{path="/v1/completions",status="200"} 2.0' in metrics
    assert front.texts == 0
    (new,) = re.findall(r"^lade_generated_tokens_total (\S+)", here.service.metrics.page().decode(), re.MULTILINE)
    assert float(new) < 24 + 500  # the text of the client that left has 1,500


@pytest.mark.parametrize("fields", [{"stream": True, "presence_penalty": 1}, {}], ids=["text", "endpoint"])
def test_a_request_that_fails_in_a_replica_is_named_in_its_log(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: Any) -> None:
        raise LookupError("a secret of the inside")

    here, asked = Here(), {"prompt": PROMPT, "max_tokens": 3}
    with client_of(here) as (client, _):
        client.post("/v1/completions", json=asked)
        monkeypatch.setattr(Penalties, "__call__", fail)
        if not fields:
            monkeypatch.setattr(type(here.service), "check_model", fail)
        caplog.clear()
        client.post("/v1/completions", json=asked | fields, headers={"x-request-id": "mine"})
        run(client, here.service.stop)
    assert [record.getMessage() for record in caplog.records] == ["request mine failed"]
    assert "a secret of the inside" in caplog.text


def test_the_paths_are_those_of_the_server() -> None:
    service = build_service(SETTINGS, *lade.models.load("stories260K"))
    service.engine.close()
    own = {route.path_format for route in create_app(service, guarded=False).routes} - {"/page.css", "/page.js"}
    assert own == set(PATHS)


def test_a_replica_that_is_lost_before_its_answer() -> None:
    with client_of(Scripted(error=unavailable("it has ended"))) as (client, _):
        answer = client.post("/v1/completions", json={"prompt": "x"})
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert answer.json()["error"] == {"message": "it has ended", "type": "server_error", "param": None, "code": None}


def test_too_many_requests_wait() -> None:
    with client_of(Scripted(error=busy())) as (client, _):
        assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 429


def test_a_replica_that_is_lost_within_a_stream() -> None:
    lost = Scripted(head(STREAM), part(b'data: {"a":1}\n\n: keep-alive\n\n'), error=unavailable("it has ended"))
    with client_of(lost) as (client, _):
        found = events(client.post("/v1/chat/completions", json={}).text)
        response, message = (client.post(path, json={}).text for path in ("/v1/responses", "/v1/messages"))
    assert found[0] == {"a": 1}
    assert found[1]["error"]["message"] == "it has ended"
    assert len(found) == 2
    kind, data = response.split("\n\n")[-2].split("\n")
    assert kind == "event: error"
    error = {"type": "error", "sequence_number": 1, "code": None, "message": "it has ended", "param": None}
    assert json.loads(data.removeprefix("data: ")) == error
    kind, data = message.split("\n\n")[-2].split("\n")
    assert (kind, json.loads(data.removeprefix("data: "))) == ("event: error", {"type": "error"} | found[1])


def test_a_replica_that_is_lost_within_a_body() -> None:
    """What is left to tell the client is that the body ends too early."""
    with client_of(Scripted(head(WHOLE), part(b"{"), error=unavailable())) as (client, front):
        cut = call(front)
        run(client, cut.run)
    assert cut.parts == [b"{"]


@pytest.mark.parametrize("messages", [[], [head(STREAM), part(b"data: 1\n\n")]], ids=["waiting", "streaming"])
def test_a_client_that_leaves_ends_its_request(messages: list[dict[str, Any]]) -> None:
    replicas = Scripted(*messages)
    with client_of(replicas) as (client, front):
        leaving = call(front)

        async def leave() -> None:
            running = asyncio.create_task(leaving.run())
            while not replicas.asked or len(leaving.parts) < len(messages) // 2:
                await asyncio.sleep(0)
            leaving.leave()
            await running

        run(client, leave)
    assert replicas.ended == 1
    assert b"error" not in b"".join(leaving.parts)


def test_a_client_that_does_not_read() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    replicas = Scripted(head(STREAM), part(b"data: 1\n\n"))
    with client_of(replicas, replace(SETTINGS, send_seconds=0.02)) as (client, front):
        run(client, call(front, on_part=never).run)
    assert replicas.ended == 1


def test_the_end_of_the_server() -> None:
    replicas = Scripted(head(STREAM), part(b"data: 1\n\n"))
    with client_of(replicas) as (client, front):
        cut, late = call(front), call(front)

        async def end() -> None:
            running = asyncio.create_task(cut.run())
            while not cut.parts:
                await asyncio.sleep(0)
            front.drain()
            await late.run()
            assert front.texts == 1
            await front.stop()
            await running

        run(client, end)
        health = client.get("/health").status_code
    assert "shuts down" in events(b"".join(cut.parts).decode())[-1]["error"]["message"]
    assert (late.status, health, replicas.ended) == (503, 503, 1)


def test_keys_stay_in_front() -> None:
    """A replica gets the name of the key, and the tenant is the route."""
    replicas = Scripted(head(WHOLE), part(b"{}", more=False))
    keyed = replace(SETTINGS, keys=Keys([KEY]), tenant_pools=True)
    with client_of(replicas, keyed) as (client, _):
        assert client.post("/v1/completions", json={}).status_code == 401
        assert client.post("/v1/completions", json={}, headers={"host": "evil.test"}).status_code == 403
        client.post("/v1/completions", json={}, headers={"Authorization": f"Bearer {KEY}"})
        assert client.get("/v1/models").status_code == 401
    ((exchange, route),) = replicas.asked
    assert route is not None
    assert route.home == keyed.tenant(exchange.scope["lade_key"])
    assert KEY not in repr(exchange)
    assert KEY not in repr(route)


def test_health_and_metrics() -> None:
    with client_of(Scripted()) as (client, _):
        assert client.get("/health").json() == {"status": "ok"}
        page = client.get("/metrics").text
    with client_of(Scripted(running=0)) as (client, _):
        assert client.get("/health").status_code == 503
    assert 'lade_texts{replica="a"} 2.0' in page
    assert 'lade_texts{replica="b"} 3.0' in page
    assert page.count("# TYPE lade_texts gauge") == 1
    assert 'lade_requests_total{path="/health",status="200"} 1.0' in page
    assert "lade_generated_tokens" not in page  # the front has no text
