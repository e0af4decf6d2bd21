"""Who may ask, from where, and how much: wrong requests are answered before anything is decoded."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from served import PROMPT, Exchange, Served, serving

from lade.applications.serve.keys import Keys

ONE, TWO = "first-key-0123456789", "second-key-0123456789"
SMALL = {"prompt": PROMPT, "max_tokens": 1}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1:99", "[::1]:8000", "192.168.1.7", "LOCALHOST", "named.test:80"]
)
def test_hosts_that_are_this_server(pair: Any, host: str) -> None:
    with serving(pair, allow_hosts=("named.test",)) as served:
        assert served.client.get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.test", "evil.test:8000", "localhost.evil.test", "", "[", "127.0.0.1.evil.test"])
def test_other_hosts_are_refused(served: Served, host: str) -> None:
    """A page can rebind a name of its own to this machine, but no address."""
    answer = served.client.get("/health", headers={"host": host})
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "host_not_allowed"


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_pages_of_other_origins_are_refused(served: Served, method: str) -> None:
    answer = served.client.request(method, "/v1/completions", headers={"origin": "http://evil.test"}, json=SMALL)
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "origin_not_allowed"
    assert "access-control-allow-origin" not in answer.headers


def test_the_server_s_own_pages_may_ask(served: Served) -> None:
    answer = served.client.post("/v1/completions", headers={"origin": "http://localhost"}, json=SMALL)
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("allowed", ["https://page.test", "*"])
def test_an_allowed_origin(pair: Any, allowed: str) -> None:
    own = {"origin": "https://page.test"}
    with serving(pair, allow_origins=(allowed,), keys=Keys([ONE])) as served:
        wanted = {
            "access-control-request-headers": "x-one, authorization",
            "access-control-request-private-network": "true",
        }
        asked = served.client.options(
            "/v1/completions", headers=own | wanted | {"access-control-request-method": "POST"}
        )
        assert asked.status_code == 204
        assert asked.headers["access-control-allow-headers"] == "x-one, authorization"
        assert asked.headers["access-control-allow-private-network"] == "true"
        assert "POST" in asked.headers["access-control-allow-methods"]
        answer = served.client.post("/v1/completions", headers=own | bearer(ONE), json=SMALL)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://page.test"
        assert "access-control-allow-credentials" not in answer.headers
        assert answer.headers["access-control-expose-headers"] == "x-request-id"
        refused = served.client.post("/v1/completions", headers=own, json=SMALL)
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://page.test"


@pytest.mark.parametrize(
    "headers", [{}, bearer("wrong"), bearer(""), {"Authorization": f"Basic {ONE}"}, bearer("é" * 20)]
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models", "/metrics", "/openapi.json", "/nothing"])
def test_without_a_key(pair: Any, headers: dict[str, str], path: str) -> None:
    encoded = {name: value.encode("latin-1") for name, value in headers.items()}
    with serving(pair, keys=Keys([ONE])) as served:
        answer = served.client.post(path, headers=encoded, content=b"no JSON")
        assert answer.status_code == 401
        assert answer.json()["error"]["type"] == "authentication_error"
        assert answer.headers["www-authenticate"] == "Bearer"
        assert served.client.get("/health").status_code == 200


def test_prefixes_belong_to_a_key(pair: Any) -> None:
    """Nobody sees by speed or usage what another has sent."""
    long = {"prompt": [50 + place % 90 for place in range(150)], "max_tokens": 1}

    def cached(served: Served, key: str) -> int:
        answer = served.client.post("/v1/completions", headers=bearer(key), json=long).json()
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    with serving(pair, keys=Keys([ONE, TWO]), tenant_pools=True) as served:
        assert [cached(served, key) for key in (ONE, ONE, TWO, TWO)] == [0, 128, 0, 128]
    with serving(pair, keys=Keys([ONE]), tenant_pools=False) as served:
        assert [cached(served, ONE) for _ in range(2)] == [0, 0]


def test_keys_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# ours\n\n{ONE}\n  {TWO}  \n")
    keys = Keys.of_file(file)
    names = [keys.name(ONE), keys.name(TWO)]
    assert None not in names
    assert names[0] != names[1]
    assert ONE not in str(names)
    assert keys.name(ONE + "x") is None


@pytest.mark.parametrize(
    "text", ["", "# no key\n", "short\n", "with a space in it 0123456789\n", "ümlaut-0123456789\n"]
)
def test_keys_that_are_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"API key|at least one") as error:
        Keys.of_file(path)
    assert not text.strip("# \n") or text.strip() not in str(error.value).removeprefix(str(path))


def test_a_body_that_is_too_large(pair: Any) -> None:
    with serving(pair, body_bytes=1000) as served:
        large = json.dumps({"prompt": "x" * 1000}).encode()
        told = served.client.post("/v1/completions", content=large, headers={"content-type": "application/json"})
        parts = Exchange(served.app, "/v1/completions", large, headers=(("host", "localhost"),))
        served.run(parts.run)
    assert told.status_code == parts.status == 413
    assert told.json()["error"]["code"] == "body_too_large"


def test_a_body_that_does_not_arrive(pair: Any) -> None:
    with serving(pair, body_seconds=0.01) as served:
        exchange = Exchange(served.app, "/v1/completions", b'{"prompt"', more_body=True)
        served.run(exchange.run)
    assert exchange.status == 408
    assert "0.01 seconds" in json.loads(b"".join(exchange.parts))["error"]["message"]


def test_a_client_that_leaves_before_its_body_is_sent(served: Served) -> None:
    exchange = Exchange(served.app, "/v1/completions", b'{"prompt"', more_body=True)

    async def leave() -> None:
        running = asyncio.create_task(exchange.run())
        await asyncio.sleep(0)
        exchange.leave()
        await running

    served.run(leave)
    assert exchange.status == 0


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models", "/v1/nothing"])
@pytest.mark.parametrize("host", ["localhost", "evil.test"])
@pytest.mark.parametrize("name", ["req_1-A/b", "x" * 128])
def test_an_answer_names_its_request(served: Served, path: str, host: str, name: str) -> None:
    for fields in (SMALL, SMALL | {"stream": True}, {}):
        answer = served.client.post(path, headers={"host": host, "x-request-id": name}, json=fields)
        assert answer.headers.get_list("x-request-id") == [name]


@pytest.mark.parametrize("name", [None, "", "two words", "x" * 129, "é", "a\tb"])
def test_a_request_without_a_name_of_its_own_gets_one(served: Served, name: str | None) -> None:
    own = {} if name is None else {"x-request-id": name.encode("latin-1")}
    made = [served.client.get("/health", headers=own).headers["x-request-id"] for _ in range(2)]
    assert made[0] != made[1]
    assert all(len(each) == 32 and each.isalnum() for each in made)


def test_a_failure_of_the_server_is_an_answer_like_others(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(type(served.service), "check_model", lambda *_: [][0])

    async def ask() -> Any:
        own = httpx2.ASGITransport(served.app)
        async with httpx2.AsyncClient(transport=own, base_url="http://localhost") as client:
            return await client.get("/v1/models/a", headers={"x-request-id": "mine"})

    answer = served.run(ask)
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
    assert answer.headers["x-request-id"] == "mine"
    assert 'lade_requests_total{path="/v1/models/{model}",status="500"} 1.0' in served.client.get("/metrics").text
    (told,) = [record for record in caplog.records if record.name == "lade.serve"]
    assert told.getMessage() == "request mine failed"
    assert told.exc_info is not None
    assert told.exc_info[0] is IndexError
