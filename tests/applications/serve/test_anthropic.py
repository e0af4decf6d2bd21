"""/v1/messages: the same text as the chat's, in the blocks and events of that endpoint."""

import json
from typing import Any

import anthropic
import httpx2
import pytest
from arriving import ARRIVING, CALL
from hypothesis import given
from pydantic import ValidationError
from served import NAME, Served, serving

from lade.applications.serve.anthropic.content import AnswerContent
from lade.applications.serve.anthropic.request import MessagesRequest
from lade.applications.serve.keys import Keys
from lade.applications.serve.prompts import Prompts
from lade.applications.serve.tools import HERMES, Parsed, ToolParser, read

SAYS: list[Any] = [{"role": "user", "content": "Add two numbers"}]
ASKED: dict[str, Any] = {"messages": SAYS, "system": "Be short.", "max_tokens": 12, "temperature": 0}
CHAT = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Add two numbers"}]
SCHEMA = {
    "type": "object",
    "properties": {"town": {"enum": ["Bonn", "Köln"]}},
    "required": ["town"],
    "additionalProperties": False,
}
WEATHER = {"name": "get_weather", "description": "The weather.", "input_schema": SCHEMA}
CALLS: dict[str, Any] = {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "get_weather"}, "max_tokens": 60}
USE = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"town": "Bonn"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "Rain."}]}


def post(served: Served, path: str = "/v1/messages", **fields: Any) -> Any:
    answer = served.client.post(path, json=ASKED | fields)
    assert answer.status_code == 200, answer.text
    return answer


def chat(served: Served, **fields: Any) -> Any:
    answer = served.client.post("/v1/chat/completions", json={"temperature": 0} | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(text: str) -> list[Any]:
    parts = [part.split("\n") for part in text.split("\n\n") if part and not part.startswith(":")]
    found = [json.loads(data.removeprefix("data: ")) for _, data in parts]
    assert [line.removeprefix("event: ") for line, _ in parts] == [event["type"] for event in found]
    return found


def built(told: list[Any]) -> list[Any]:
    """The blocks that events build, each of which ends before the next one begins."""
    blocks, open_, written = list[Any](), False, ""
    for event in told:
        kind = event["type"].removeprefix("content_block_")
        if kind == "start":
            assert not open_
            blocks, open_, written = [*blocks, event["content_block"]], True, ""
        elif kind == "delta":
            assert open_
            if event["delta"]["type"] == "text_delta":
                blocks[-1]["text"] += event["delta"]["text"]
            else:
                written += event["delta"]["partial_json"]
        elif kind == "stop":
            assert open_
            open_ = False
            if blocks[-1]["type"] == "tool_use":
                blocks[-1]["input"] = json.loads(written)
        else:
            continue
        assert event["index"] == len(blocks) - 1
    assert not open_
    return blocks


def without_id(blocks: Any) -> Any:
    return [{name: value for name, value in block.items() if name != "id"} for block in blocks]


def test_the_text_is_the_chat_s(served: Served) -> None:
    body = post(served).json()
    said = chat(served, messages=CHAT, max_tokens=12)
    assert body["content"] == [{"type": "text", "text": said["choices"][0]["message"]["content"]}]
    assert (body["type"], body["role"], body["model"]) == ("message", "assistant", NAME)
    assert (body["stop_reason"], body["stop_sequence"]) == ("max_tokens", None)
    usage = body["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == said["usage"]["prompt_tokens"]
    assert usage["output_tokens"] == 12
    blocks = [
        {"type": "text", "text": "Add two ", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "numbers"},
    ]
    asked = {"messages": [{"role": "user", "content": blocks}], "system": [{"type": "text", "text": "Be short."}]}
    assert post(served, **asked).json()["content"] == body["content"]
    assert post(served, lade={"speculation": False}).json()["content"] == body["content"]


def test_why_it_ends(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = post(served).json()["content"]
    stop = block["text"][4:7]
    stopped = post(served, stop_sequences=["never", stop]).json()
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", stop)
    assert stopped["content"][0]["text"] == block["text"][: block["text"].index(stop)]
    (block,) = post(served, tools=[WEATHER]).json()["content"]
    with_tools = post(served, tools=[WEATHER], stop_sequences=[block["text"][4:7]]).json()
    assert with_tools["stop_reason"] == "stop_sequence", "it has called none"
    monkeypatch.setattr(Prompts, "chat_stops", (stop,))  # as a line that begins with a role
    ended = post(served, stop_sequences=["never"]).json()
    assert (ended["stop_reason"], ended["stop_sequence"]) == ("end_turn", None)


def test_its_events(served: Served) -> None:
    told = events(post(served, stream=True).text)
    body = post(served).json()
    assert [told[0]["type"], *(event["type"] for event in told[-2:])] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    start = told[0]["message"]
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert start["usage"]["input_tokens"] == body["usage"]["input_tokens"]
    assert built(told) == body["content"]
    assert told[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert told[-2]["usage"]["output_tokens"] == 12
    for each in (told[-2], body):
        assert each["metrics"]["speculative_decoding"]["num_spec_steps"] > 0


def test_its_usage(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of the cache are none of the input."""
    used = {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens": 3}
    monkeypatch.setattr("lade.applications.serve.anthropic.format.usage_of", lambda answer: used)
    assert post(served).json()["usage"] == {
        "input_tokens": 6,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 3,
    }


def test_a_call(served: Served) -> None:
    body = post(served, **CALLS).json()
    (block,) = body["content"]
    assert (block["type"], block["name"], body["stop_reason"]) == ("tool_use", "get_weather", "tool_use")
    assert block["input"]["town"] in ("Bonn", "Köln")
    assert without_id(built(events(post(served, **CALLS, stream=True).text))) == without_id(body["content"])
    formed = post(
        served, **CALLS, output_config={"format": {"type": "json_schema", "schema": {"type": "array"}}}
    ).json()
    assert without_id(formed["content"]) == without_id(body["content"]), "a format is that of a text"
    for kind in ("any", "auto", "none"):
        kinds = {block["type"] for block in post(served, **CALLS | {"tool_choice": {"type": kind}}).json()["content"]}
        assert kinds == {"tool_use" if kind == "any" else "text"}


@given(ARRIVING)
def test_events_build_the_blocks(pieces: list[str]) -> None:
    content, parser, told = AnswerContent(), ToolParser(HERMES, frozenset(["stop"])), list[Any]()
    for piece in pieces:
        told += content.add(read(parser, piece, final=False))
    told += content.add(read(parser, "", final=True)) + content.end()
    assert built(told) == content.blocks
    whole = "".join(pieces)
    calls = whole.count(CALL)
    assert [block["input"] for block in content.blocks if block["type"] == "tool_use"] == [{"a": "é"}] * calls
    at_once = AnswerContent()
    at_once.add(read(ToolParser(HERMES, frozenset(["stop"])), whole, final=True))
    texts = ["".join(block.get("text", "") for block in each.blocks) for each in (content, at_once)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(("written", "value"), [('"Bonn"', "Bonn"), ("no JSON", "no JSON"), ("[1]", [1])])
def test_arguments_that_are_no_object(written: str, value: Any) -> None:
    content = AnswerContent()
    content.add(Parsed("", [{"id": "1", "function": {"name": "f", "arguments": written}}]))
    assert content.blocks == [{"type": "tool_use", "id": "1", "name": "f", "input": {"arguments": value}}]


def test_a_conversation_is_the_chat_s() -> None:
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    turns = [
        *SAYS,
        {"role": "system", "content": "Be quick."},
        {"role": "assistant", "content": [thinking, {"type": "text", "text": "Let me see."}, USE]},
        {"role": "user", "content": [RESULT, RESULT | {"content": None}, {"type": "text", "text": "And now?"}]},
    ]
    system = [{"type": "text", "text": text} for text in ("Be short.", "Be kind.")]
    messages = MessagesRequest.model_validate(ASKED | {"messages": turns, "system": system}).chat().messages
    function = {"name": "get_weather", "arguments": '{"town": "Bonn"}'}
    call = {"id": "toolu_1", "type": "function", "function": function}
    assert [message.model_dump(exclude_none=True) for message in messages] == [
        {"role": "system", "content": "Be short.\nBe kind."},
        *SAYS,
        {"role": "system", "content": "Be quick."},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call]},
        {"role": "tool", "content": "Rain.", "tool_call_id": "toolu_1"},
        {"role": "tool", "content": "", "tool_call_id": "toolu_1"},
        {"role": "user", "content": "And now?"},
    ]


def test_its_fields_are_the_chat_s() -> None:
    shared = {"top_k": 5, "top_p": 0.5, "max_tokens": 7, "temperature": 0.5, "stream": True}
    others = {"stop_sequences": ["a"], "tools": [WEATHER], "lade": {"speculation": False}}
    made = MessagesRequest.model_validate(ASKED | shared | others).chat()
    assert {name: getattr(made, name) for name in shared} == shared
    assert (made.stops, made.lade.speculation) == (("a",), False)
    (function,) = made.functions_offered
    assert function == {"name": "get_weather", "description": "The weather.", "parameters": SCHEMA}


def test_half_a_character_is_no_input_of_a_tool() -> None:
    used = {"role": "assistant", "content": [USE | {"input": {"town": "\ud800"}}]}
    with pytest.raises(ValidationError, match="must be text in Unicode"):
        MessagesRequest.model_validate(ASKED | {"messages": [used]})


def test_a_schema(served: Served) -> None:
    wanted = {"format": {"type": "json_schema", "schema": SCHEMA}, "effort": "low"}
    (block,) = post(served, output_config=wanted, max_tokens=60).json()["content"]
    assert json.loads(block["text"])["town"] in ("Bonn", "Köln")


def test_tokens_are_counted(served: Served) -> None:
    asked = {name: value for name, value in (ASKED | CALLS).items() if name not in ("max_tokens", "temperature")}
    answer = served.client.post("/v1/messages/count_tokens", json=asked)
    usage = post(served, **CALLS).json()["usage"]
    assert answer.json() == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


def test_fields_that_change_nothing(served: Served) -> None:
    """Those that coding agents send."""
    neutral = {
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": []},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": "a"},
    }
    search = {"type": "web_search_20250305", "name": "web_search"}
    answer = served.client.post("/v1/messages?beta=true", json=ASKED | neutral | {"tools": [search]})
    assert answer.json()["content"] == post(served).json()["content"]
    eager = [WEATHER | {"eager_input_streaming": True, "strict": True}]
    assert post(served, tools=eager).json()["content"] == post(served, tools=[WEATHER]).json()["content"]


def test_a_client_learns_that_there_are_no_threads(served: Served) -> None:
    """The runner of tools in Anthropic's package for JavaScript then sends whole conversations."""
    answer = served.client.post("/v1/messages?beta=true", json=ASKED | {"thread": {"type": "create"}})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", "thread")
    assert error["message"].startswith("thread must be left out, since the server keeps no conversations, got")
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert "details" not in served.client.post("/v1/messages", json=ASKED | {"n": 2}).json()["error"]
    assert post(served, thread=None).json()["content"] == post(served).json()["content"]


def test_the_anthropic_package(served: Served) -> None:
    plain, called = (post(served, **fields).json()["content"] for fields in ({}, CALLS))

    async def use() -> None:
        own = httpx2.AsyncClient(transport=httpx2.ASGITransport(served.app))
        async with anthropic.AsyncAnthropic(base_url="http://localhost", api_key="none", http_client=own) as api:
            asked: Any = {"model": NAME, "extra_body": {"temperature": 0}} | ASKED
            del asked["temperature"]  # the package has no name for it any more
            whole = await api.messages.create(**asked)
            assert [block.to_dict() for block in whole.content] == plain
            async with api.messages.stream(**asked) as stream:
                assert "".join([text async for text in stream.text_stream]) == plain[0]["text"]
            async with api.messages.stream(**asked | CALLS) as stream:
                final = await stream.get_final_message()
            assert without_id([block.to_dict() for block in final.content]) == without_id(called)
            assert final.stop_reason == "tool_use"
            counted = await api.messages.count_tokens(model=NAME, messages=SAYS, system="Be short.")
            assert counted.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
            with pytest.raises(anthropic.NotFoundError, match="model must be"):
                await api.messages.create(**asked | {"model": "other"})

    served.run(use)


def test_its_key_header(pair: Any) -> None:
    keys = Keys(["a-key-of-sixteen-characters"])
    with serving(pair, keys=keys) as served:
        for headers, status in (
            ({}, 401),
            ({"x-api-key": "a-key-of-another-server"}, 401),
            ({"x-api-key": "a-key-of-sixteen-characters"}, 200),
        ):
            answer = served.client.post("/v1/messages", json=ASKED, headers=headers)
            assert answer.status_code == status, answer.text
        assert served.client.post("/v1/messages", json=ASKED).json()["type"] == "error"


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"max_tokens": None}, "max_tokens", "must be a valid integer"),
        ({"max_tokens": 0}, "max_tokens", "must be greater than or equal to 1"),
        ({"stop_sequences": ["a"] * 17}, "stop_sequences", "must have at most 16 items"),
        ({"temperature": 1.5}, "temperature", "must be less than or equal to 1"),
        ({"messages": []}, "messages", "must have at least 1 item"),
        (
            {"messages": [{"role": "tool", "content": "a"}]},
            "messages.0.role",
            "must be 'user', 'assistant' or 'system'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
            "messages.0.content.0",
            "must have the type 'text' or",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "1", "name": "f"}]}]},
            "messages.0.content.0.input",
            "must be given",
        ),
        ({"messages": [{"role": "user", "content": [USE]}]}, "messages.0", "'tool_use' only where role is 'assistant'"),
        ({"messages": [{"role": "assistant", "content": [RESULT]}]}, "messages.0", "'tool_result' only where role is"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema", "must be given"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools.0.name", "must match pattern"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name", "must be given"),
        ({"tool_choice": {"type": "any"}}, None, "must have tools where tool_choice forces a call"),
        ({"tool_choice": {"type": "some"}}, "tool_choice", "must have a type of"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "g"}}, None, "a tool_choice that names one of"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "nonsense"}}}},
            "output_config.format.schema",
            "output_config.format.schema must be a JSON schema",
        ),
        (
            {"messages": [{"role": "assistant", "content": [USE] * 129}]},
            None,
            "got messages.1.tool_calls for it: List should have at most 128",
        ),
        ({"stop_sequences": [""]}, "stop_sequences.0", "must have at least 1 character"),
        ({"n": 2}, "n", "must be left out"),
        ({"messages": [{"role": "user", "content": "x " * 9000}]}, "messages", "must have at most"),
    ],
    ids=str,
)
def test_a_wrong_field_is_named(served: Served, fields: dict[str, Any], param: str | None, message: str) -> None:
    answer = served.client.post("/v1/messages", json=ASKED | fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], message in error["message"]) == (param, True), error
    assert answer.json()["type"] == "error"
