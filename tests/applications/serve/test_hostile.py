"""Requests that are wrong, on purpose or not: each is answered with a status below 500 that names the field."""

import gzip
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served import NAME, PROMPT, Served

CHAT, COMPLETION, RESPONSE = "/v1/chat/completions", "/v1/completions", "/v1/responses"
SAYS = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
GOES_ON = {"prompt": PROMPT, "max_tokens": 1}
ASKS: dict[str, dict[str, Any]] = {
    CHAT: SAYS,
    COMPLETION: GOES_ON,
    RESPONSE: {"input": "hello", "max_output_tokens": 1},
}
WRONG: list[tuple[str, dict[str, Any], str | None]] = [
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": None}, "messages"),
    (CHAT, {"messages": "hello"}, "messages"),
    (CHAT, {"messages": [{"role": "king", "content": "x"}]}, "messages.0.role"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages.0"),
    (CHAT, {"messages": [{"role": "user", "content": 3}]}, "messages.0.content"),
    (CHAT, {"messages": [{"role": "user", "content": []}]}, "messages.0.content"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages.0.content.0",
    ),
    (CHAT, {"messages": [{"role": "user", "content": "\ud800"}]}, "messages.0.content"),
    (CHAT, {"messages": [{"role": "user", "content": "x " * 9000}]}, "messages"),
    (CHAT, {"max_tokens": 0}, "max_tokens"),
    (CHAT, {"max_completion_tokens": 1.5}, "max_completion_tokens"),
    (CHAT, {"top_logprobs": 3}, None),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (CHAT, {"response_format": {"type": "xml"}}, "response_format"),
    (CHAT, {"tools": [{"type": "function"}]}, "tools"),
    (CHAT, {"modalities": ["audio"]}, "modalities.0"),
    (CHAT, {"prediction": {"type": "content"}}, "prediction.content"),
    (CHAT, {"stream_options": {"include_usage": True}}, None),
    (CHAT, {"stream": "yes"}, "stream"),
    (CHAT, {"n": 0}, "n"),
    (CHAT, {"n": 129}, "n"),
    (CHAT, {"n": 128}, "n"),
    (CHAT, {"model": "gpt-9"}, "model"),
    (CHAT, {"tool_choice": "any"}, "tool_choice"),
    (CHAT, {"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
    (CHAT, {"min_tokens": 9, "max_tokens": 8}, None),
    (CHAT, {"stop": ""}, "stop"),
    (COMPLETION, {"stop_token_ids": [1 << 70]}, "stop_token_ids"),
    (COMPLETION, {"skip_special_tokens": False}, "skip_special_tokens"),
    (CHAT, {"model": 3}, "model"),
    (CHAT, {"lade": {"speculation": "no"}}, "lade.speculation"),
    (CHAT, {"lade": {"warp": 9}}, "lade.warp"),
    (CHAT, {"temprature": 1}, "temprature"),
    (COMPLETION, {"prompt": []}, "prompt"),
    (COMPLETION, {"prompt": [[]]}, "prompt.0"),
    (COMPLETION, {"prompt": [-1]}, "prompt.0"),
    (COMPLETION, {"prompt": [1 << 40]}, "prompt"),
    (COMPLETION, {"prompt": [9000]}, "prompt"),
    (COMPLETION, {"prompt": {"a": 1}}, "prompt"),
    (COMPLETION, {"prompt": ["x"] * 129}, "prompt"),
    (COMPLETION, {"prompt": ["x"] * 99}, "n"),
    (COMPLETION, {"prompt": [5] * 2048}, "prompt"),
    (COMPLETION, {"max_tokens": 0}, None),
    (COMPLETION, {"max_tokens": -1}, "max_tokens"),
    (COMPLETION, {"best_of": 3}, None),
    (COMPLETION, {"suffix": "x"}, "suffix"),
    (COMPLETION, {"suffix": {}}, "suffix"),
    (COMPLETION, {"suffix": 0}, "suffix"),
    (COMPLETION, {"logprobs": 21}, "logprobs"),
    (COMPLETION, {"logprobs": True}, "logprobs"),
    (COMPLETION, {"temperature": -1}, "temperature"),
    (COMPLETION, {"temperature": 2.1}, "temperature"),
    (COMPLETION, {"temperature": "1"}, "temperature"),
    (COMPLETION, {"temperature": True}, "temperature"),
    (COMPLETION, {"top_p": 1.1}, "top_p"),
    (COMPLETION, {"top_k": -2}, "top_k"),
    (COMPLETION, {"min_p": 2}, "min_p"),
    (COMPLETION, {"seed": 1 << 63}, "seed"),
    (COMPLETION, {"seed": 1.5}, "seed"),
    (COMPLETION, {"seed": 2.0**63}, "seed"),
    (COMPLETION, {"repetition_penalty": 0}, "repetition_penalty"),
    (COMPLETION, {"frequency_penalty": 2.5}, "frequency_penalty"),
    (COMPLETION, {"presence_penalty": -2.5}, "presence_penalty"),
    (COMPLETION, {"stop": [""]}, "stop.0"),
    (COMPLETION, {"stop": ["x"] * 17}, "stop"),
    (COMPLETION, {"stop": "x" * 501}, "stop"),
    (COMPLETION, {"stop": 3}, "stop"),
    (COMPLETION, {"logit_bias": {"x": 1}}, "logit_bias"),
    (COMPLETION, {"logit_bias": {"-1": 1}}, "logit_bias"),
    (COMPLETION, {"logit_bias": {"9" * 400: 1}}, "logit_bias"),
    (COMPLETION, {"logit_bias": {"5": 101}}, "logit_bias.5"),
    (COMPLETION, {"logit_bias": [5]}, "logit_bias"),
]


@pytest.mark.parametrize(("path", "change", "param"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_field_is_named(served: Served, path: str, change: dict[str, Any], param: str | None) -> None:
    body = json.dumps((SAYS if path == CHAT else GOES_ON) | change)
    answer = served.client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == (404 if change.get("model") == "gpt-9" else 400), answer.text
    error = answer.json()["error"]
    assert error["param"] is None if param is None else str(error["param"]).startswith(param)
    assert "must" in error["message"]
    assert len(error["message"]) < 500
    if param is not None:
        assert error["param"].split(".")[0] in error["message"]


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"null", b"[]", b"3", b'"x"', b"\xff\xfe", b"{" * 20_000, b"[" * 100_000, b'{"prompt":' * 5_000),
        *(
            b'{"prompt": NaN}',
            b'{"temperature": 1e999, "prompt": "x"}',
            b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
        ),
        *(b'{"prompt": "x", "prompt": 3}', b"\x00", b'{"prompt": "x", "temperature": -Infinity}'),
    ],
    ids=lambda body: str(body[:30]),
)
@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_bodies_that_are_no_request(served: Served, path: str, body: bytes) -> None:
    for kind in ("application/json", "text/plain"):
        answer = served.client.post(path, content=body, headers={"content-type": kind})
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["type"] == "invalid_request_error"
        assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tool_choice": "any"}, "tool_choice must be 'none', 'auto' or 'required', got 'any'"),
        (
            {"tool_choice": {"type": "a"}},
            "tool_choice must have the type 'function' or 'allowed_tools', as others are not taken, got {'type': 'a'}",
        ),
        ({"stop": ""}, "stop must have at least 1 character, got ''"),
    ],
    ids=str,
)
def test_of_branches_those_of_the_value_s_type_are_told(served: Served, change: dict[str, Any], message: str) -> None:
    assert served.client.post(CHAT, json=SAYS | change).json()["error"]["message"] == message


def test_a_body_in_another_encoding(served: Served) -> None:
    body = json.dumps(GOES_ON).encode()
    head = {"content-type": "application/json"}
    packed = served.client.post(COMPLETION, content=gzip.compress(body), headers=head | {"content-encoding": "gzip"})
    assert packed.status_code == 415
    assert "Content-Encoding header must be identity or left out, got 'gzip'" in packed.json()["error"]["message"]
    assert served.client.post(COMPLETION, content=body, headers=head | {"content-encoding": "identity"}).is_success
    latin = served.client.post(COMPLETION, content='{"prompt": "é"}'.encode("latin-1"), headers=head)
    assert "UTF-8" in latin.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", CHAT, 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
        ("GET", "/nothing", 404),
        ("GET", "/v1/models/gpt-9", 404),
        ("GET", "/v1/models/../../etc/passwd", 404),
        ("GET", "/docs", 404),
    ],
)
def test_paths_and_methods(served: Served, method: str, path: str, status: int) -> None:
    answer = served.client.request(method, path)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=3) | st.just(1 << 70)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
NAMES = (
    "messages",
    "prompt",
    "stop",
    "logit_bias",
    "prediction",
    "seed",
    "n",
    "model",
    "top_p",
    "stream_options",
    "lade",
    "input",
    "text",
)
BODIES = st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=4), VALUES, max_size=3)


@settings(max_examples=120)
@given(BODIES, st.sampled_from(sorted(ASKS)))
def test_any_json_is_answered(served: Served, body: dict[str, Any], path: str) -> None:
    answer = served.client.post(
        path, content=json.dumps(ASKS[path] | body), headers={"content-type": "application/json"}
    )
    assert answer.status_code in (200, 400, 404), answer.text
    assert answer.status_code == 200 or "error" in answer.json()


def test_nothing_is_left_of_them(served: Served) -> None:
    served.settled()
    assert served.complete(max_tokens=1)["model"] == NAME
