"""Requests while others run: queues, clients that leave or do not read, failures, and the end of the server."""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from running import Gate
from served import PROMPT, Exchange, Served, events, serving

import lade
from lade.applications.serve.answer import Delta
from lade.applications.serve.connection import ALIVE
from lade.applications.serve.penalties import Penalties
from lade.applications.serve.plan import Text
from lade.applications.serve.schema import CompletionRequest
from lade.applications.serve.stream import SentAsEvents
from lade.applications.serve.worker import Job

LONG = {"prompt": PROMPT, "max_tokens": 1500, "logit_bias": {"0": -100}}  # its end is never chosen
SHORT = {"prompt": PROMPT, "max_tokens": 3}


@contextmanager
def gated(pair: Any, **settings: Any) -> Iterator[tuple[Served, Gate]]:
    with serving(pair, **settings) as served:
        gate = Gate(served.service.engine)
        try:
            yield served, gate
        finally:
            gate.open()


def exchange(served: Served, fields: dict[str, Any], **others: Any) -> Exchange:
    return Exchange(served.app, "/v1/completions", json.dumps(fields).encode(), **others)


def called(name: str) -> list[tuple[str, str]]:
    return [("host", "localhost"), ("content-type", "application/json"), ("x-request-id", name)]


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.001)


def together(served: Served, work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work(), 60)

    served.run(bounded)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("steps", [0, 3], ids=["waiting", "decoding"])
def test_a_client_that_leaves_ends_its_text(pair: Any, stream: bool, steps: int) -> None:
    with gated(pair) as (served, gate):
        leaving = exchange(served, LONG | {"stream": stream})

        async def leave() -> None:
            running = asyncio.create_task(leaving.run())
            await until(lambda: served.service.texts == 1 and leaving.status == (200 if stream else 0))
            gate.let(steps)
            leaving.leave()
            await running
            gate.open()

        together(served, leave)
        served.settled()
        page = served.client.get("/metrics").text
        (new,) = (
            float(line.split()[1]) for line in page.splitlines() if line.startswith("lade_generated_tokens_total")
        )
    assert new < 200
    assert leaving.status == (200 if stream else 0)
    assert b"[DONE]" not in b"".join(leaving.parts)


def test_too_many_requests_wait(pair: Any) -> None:
    with gated(pair, slots=1, waiting=1) as (served, gate):
        first, second, third = (exchange(served, SHORT) for _ in range(3))

        async def arrive() -> None:
            running = [asyncio.create_task(each.run()) for each in (first, second)]
            await until(lambda: served.service.texts == 2)
            await third.run()
            gate.open()
            await asyncio.gather(*running)

        together(served, arrive)
        refused = served.client.post("/v1/completions", json=SHORT | {"n": 3})
        again = served.client.post("/v1/completions", json=SHORT)
    assert [first.status, second.status, third.status, again.status_code] == [200, 200, 429, 200]
    error = json.loads(b"".join(third.parts))["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "n"


def test_a_refused_request_says_when_to_try_again(pair: Any) -> None:
    with gated(pair, slots=1, waiting=0) as (served, gate):
        first = exchange(served, SHORT)
        answers: list[Any] = []

        async def arrive() -> None:
            running = asyncio.create_task(first.run())
            await until(lambda: served.service.texts == 1)
            answers.append(await asyncio.to_thread(served.client.post, "/v1/completions", json=SHORT))
            gate.open()
            await running

        together(served, arrive)
    assert answers[0].status_code == 429
    assert int(answers[0].headers["retry-after"]) >= 1


def test_a_wrong_request_takes_no_place(pair: Any) -> None:
    with serving(pair, slots=1, waiting=0) as served:
        for _ in range(3):
            wrong = served.client.post("/v1/completions", json=SHORT | {"prompt": [[5], [99999]]})
            assert wrong.status_code == 400
            wrong = served.client.post("/v1/completions", json=SHORT | {"prompt": [99999]})
            assert wrong.status_code == 400
        assert served.service.texts == 0
        assert served.client.post("/v1/completions", json=SHORT).status_code == 200


def test_a_stream_that_waits_gets_comments(pair: Any) -> None:
    with gated(pair, alive_seconds=0.005) as (served, gate):
        waiting = exchange(served, SHORT | {"stream": True})

        async def wait() -> None:
            running = asyncio.create_task(waiting.run())
            await until(lambda: len(waiting.parts) >= 3)
            gate.open()
            await running

        together(served, wait)
    assert waiting.parts[1] == b": keep-alive\n\n"
    text = b"".join(waiting.parts).decode()
    assert events(text)[-1] == "[DONE]"


def test_a_client_that_does_not_read(pair: Any) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    with serving(pair, send_seconds=0.02) as served:
        slow = exchange(served, LONG | {"stream": True}, on_part=never)
        together(served, slow.run)
        served.settled()


def test_an_engine_that_fails(pair: Any, caplog: pytest.LogCaptureFixture) -> None:
    with gated(pair) as (served, gate):
        whole, stream = exchange(served, LONG), exchange(served, LONG | {"stream": True})

        def fail() -> bool:
            raise RuntimeError("a secret of the inside")

        async def arrive() -> None:
            running = [asyncio.create_task(each.run()) for each in (whole, stream)]
            await until(lambda: served.service.texts == 2 and stream.status == 200)
            gate._step = fail
            gate.open()
            await asyncio.gather(*running)

        together(served, arrive)
        assert served.client.get("/health").status_code == 503
        assert served.client.post("/v1/completions", json=SHORT).status_code == 503
        assert served.client.get("/metrics").status_code == 200
    assert whole.status == 503
    assert events(b"".join(stream.parts).decode())[-1]["error"]["type"] == "server_error"
    assert b"secret" not in b"".join([*whole.parts, *stream.parts])
    assert "a secret of the inside" in caplog.text


def test_a_text_that_fails_ends_alone(
    pair: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: Any) -> None:
        raise LookupError("a secret of the inside")

    monkeypatch.setattr(Penalties, "__call__", fail)
    with gated(pair) as (served, gate):
        good = exchange(served, SHORT)
        bad = exchange(served, SHORT | {"presence_penalty": 1}, headers=called("a"))
        told = exchange(served, SHORT | {"presence_penalty": 1, "stream": True}, headers=called("b"))

        async def arrive() -> None:
            running = [asyncio.create_task(each.run()) for each in (good, bad, told)]
            await until(lambda: served.service.texts == 3 and told.status == 200)
            gate.open()
            await asyncio.gather(*running)

        together(served, arrive)
        served.settled()
    assert [good.status, bad.status, told.status] == [200, 500, 200]
    assert events(b"".join(told.parts).decode())[-1]["error"]["type"] == "server_error"
    assert b"secret" not in b"".join([*bad.parts, *told.parts])
    assert "a secret of the inside" in caplog.text
    assert {record.getMessage() for record in caplog.records} == {"request a failed", "request b failed"}


def test_a_stream_that_fails_before_its_first_token_has_a_status(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise LookupError("a secret of the inside")

    monkeypatch.setattr(Penalties, "__call__", fail)
    with serving(pair, status_seconds=60) as served:
        answer = served.client.post("/v1/completions", json=SHORT | {"presence_penalty": 1, "stream": True})
        served.settled()
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert "secret" not in answer.text


def test_a_status_comes_before_a_late_token(pair: Any) -> None:
    with gated(pair, status_seconds=0.005) as (served, gate):
        waiting = exchange(served, SHORT | {"stream": True})

        async def wait() -> None:
            running = asyncio.create_task(waiting.run())
            await until(lambda: waiting.status == 200)
            gate.open()
            await running

        together(served, wait)
    assert events(b"".join(waiting.parts).decode())[-1] == "[DONE]"
    assert all(part.startswith(b"data: ") for part in waiting.parts if part), "no comment, which some clients misread"


@pytest.mark.parametrize("fails", [False, True])
def test_whoever_asks_leaves_while_a_text_is_planned(pair: Any, fails: bool) -> None:
    planning, go_on = threading.Event(), threading.Event()

    def plan() -> list[Text]:
        planning.set()
        go_on.wait()
        fields = LONG | ({"logit_bias": {"x": 1}} if fails else {})
        return served.service.planner.completion(CompletionRequest(**fields))

    with gated(pair) as (served, gate):

        async def leave() -> None:
            asking = asyncio.create_task(served.service.answer(plan, 1, 1, None))
            await until(planning.is_set)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert served.service.texts == 1
            go_on.set()
            await until(lambda: served.service.texts == 0 if fails else any(each.request.cancelled for each in jobs()))
            gate.open()

        def jobs() -> list[Job]:
            return [*served.service.worker._jobs, *served.service.worker._entering]

        together(served, leave)
        served.settled()


def test_what_runs_at_the_end_is_told(pair: Any, caplog: pytest.LogCaptureFixture) -> None:
    with gated(pair) as (served, gate), caplog.at_level(logging.WARNING):
        whole, stream = exchange(served, LONG), exchange(served, LONG | {"stream": True})

        async def end() -> None:
            running = [asyncio.create_task(each.run()) for each in (whole, stream)]
            await until(lambda: served.service.texts == 2 and stream.status == 200)
            gate.let(2)
            stopping = asyncio.create_task(served.service.stop())
            await asyncio.sleep(0)
            gate.open()
            await asyncio.gather(stopping, *running)

        together(served, end)
        assert served.client.post("/v1/completions", json=SHORT).status_code == 503
    assert whole.status == 503
    assert "shuts down" in events(b"".join(stream.parts).decode())[-1]["error"]["message"]
    assert "texts cut off by the shutdown: 2" in caplog.text


def test_a_request_that_enters_as_the_engine_closes(pair: Any) -> None:
    """Its submission is done; nobody would hand over what becomes of it."""
    with serving(pair) as served:
        service, late = served.service, exchange(served, SHORT)
        add = service.worker.add

        def after_the_end(request: Any, inbox: Any) -> None:
            service.worker.stop()
            add(request, inbox)

        service.worker.add = after_the_end  # type: ignore[method-assign]
        together(served, late.run)
    assert late.status == 503


def test_a_step_hands_all_texts_over_at_once(pair: Any) -> None:
    with gated(pair) as (served, gate):
        worker, sizes, steps = served.service.worker, list[int](), list[bool]()
        deliver, step = worker._deliver, gate._step
        worker._deliver = lambda updates: (sizes.append(len(updates)), deliver(updates))[1]  # type: ignore[method-assign]
        gate._step = lambda: (steps.append(True), step())[1]
        texts = [exchange(served, LONG | {"max_tokens": 30, "temperature": 0, "stream": True}) for _ in range(3)]

        async def arrive() -> None:
            running = [asyncio.create_task(each.run()) for each in texts]
            await until(lambda: all(each.status == 200 for each in texts))
            gate.open()
            await asyncio.gather(*running)

        together(served, arrive)
    assert len(sizes) <= len(steps)
    assert sizes.count(3) > len(sizes) / 2


def test_events_at_intervals(pair: Any) -> None:
    """Between a text's first and last step nothing is sent, since no time is as long as the interval."""
    with serving(pair, stream_interval=1e6) as served:
        stream = exchange(served, LONG | {"max_tokens": 30, "temperature": 0, "stream": True, "lade": {"steps": True}})
        together(served, stream.run)
    with serving(pair) as served:
        each = exchange(served, LONG | {"max_tokens": 30, "temperature": 0, "stream": True, "lade": {"steps": True}})
        together(served, each.run)
    sent = [[part for part in found.parts if b"tokens" in part] for found in (stream, each)]
    assert len(sent[0]) == 2
    assert len(sent[1]) > 2
    told, whole = ([event["lade"]["tokens"] for event in events(b"".join(parts).decode())] for parts in sent)
    assert told == whole
    assert sum(told) == 30


def test_a_stream_whose_steps_tell_nothing_gets_comments() -> None:
    """As while the call of a function is held back until it is whole."""

    async def deltas(*seconds: float) -> AsyncIterator[list[Delta]]:
        for _ in range(3):
            yield [Delta(0, "", [], 1, None)]

    async def parts(alive_seconds: float) -> list[bytes]:
        form = SimpleNamespace(
            answer=SimpleNamespace(deltas=deltas),
            first=list,
            of=lambda delta: [],
            last=list,
            framed=bytes,
            closing=b".",
        )
        settings = SimpleNamespace(alive_seconds=alive_seconds, status_seconds=0.0)
        sent = SentAsEvents(cast("Any", SimpleNamespace(settings=settings)), cast("Any", form))
        return [part async for part in sent._events()]

    assert asyncio.run(parts(0.0)) == [b"", ALIVE, ALIVE, b"."]
    assert asyncio.run(parts(1e9)) == [b"", b"", b"", b"."]


def test_no_room_for_a_token_and_its_answer(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    closed, close = list[lade.Engine](), lade.Engine.close
    monkeypatch.setattr(lade.Engine, "close", lambda self: (closed.append(self), close(self)))
    with pytest.raises(ValueError, match="kv_bytes must have room for at least 2 tokens, got 1"), serving(pair, 1):
        pass
    assert len(closed) == 1
