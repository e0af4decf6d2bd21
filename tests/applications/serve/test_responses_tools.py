"""Calls of functions in /v1/responses: the chat's, as items of input and output, and in the events of that endpoint."""

import copy
import json
from typing import Any

import httpx2
import openai
import pytest
from arriving import ARRIVING
from hypothesis import given
from openai.types.responses import ResponseFunctionToolCall
from served import NAME, Served

from lade.applications.serve.messages import MOST_TOOLS
from lade.applications.serve.responses.items import CallItem, messages_of
from lade.applications.serve.responses.output import Output
from lade.applications.serve.responses.request import ResponsesRequest
from lade.applications.serve.tools import HERMES, ToolParser, read

PARAMETERS = {
    "type": "object",
    "properties": {"town": {"enum": ["Bonn", "Köln"]}},
    "required": ["town"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": True}
STOP = {"type": "function", "name": "stop"}
ASKED: dict[str, Any] = {"input": "What is the weather?", "tools": [WEATHER, STOP], "max_output_tokens": 60}
NAMED = {"type": "function", "name": "get_weather"}
CALL = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"town": "Bonn"}'}
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "Rain."}


def respond(served: Served, **fields: Any) -> Any:
    answer = served.client.post("/v1/responses", json=ASKED | fields)
    assert answer.status_code == 200, answer.text
    return answer


def told(text: str) -> list[Any]:
    """The events of a stream."""
    parts = [part.split("\n") for part in text.split("\n\n") if part and not part.startswith(":")]
    return [json.loads(data.removeprefix("data: ")) for _, data in parts]


def without(item: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in names}


def test_a_call_is_the_chat_s(served: Served) -> None:
    wanted = {"format": {"type": "json_schema", "name": "a", "schema": {"type": "array"}}}  # of texts alone
    body = respond(served, tool_choice=NAMED, temperature=0, text=wanted).json()
    (item,) = body["output"]
    functions = [{"type": "function", "function": without(each, "type")} for each in (WEATHER, STOP)]
    asked = {"messages": [{"role": "user", "content": ASKED["input"]}], "tools": functions, "temperature": 0}
    named = {"type": "function", "function": {"name": "get_weather"}}
    chat = served.client.post("/v1/chat/completions", json=asked | {"tool_choice": named}).json()
    (call,) = chat["choices"][0]["message"]["tool_calls"]
    assert {"name": item["name"], "arguments": item["arguments"]} == call["function"]
    assert json.loads(item["arguments"])["town"] in ("Bonn", "Köln")
    assert (item["type"], item["status"], body["status"]) == ("function_call", "completed", "completed")
    assert body["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    assert body["tool_choice"] == NAMED
    assert [tool["name"] for tool in body["tools"]] == ["get_weather", "stop"]


@pytest.mark.parametrize(("mode", "kind"), [("required", "function_call"), ("auto", "message")])
def test_only_allowed_functions_are_called(served: Served, mode: str, kind: str) -> None:
    """Where a call is forced the model is told of all functions, otherwise of the allowed ones alone."""
    allowed = {"type": "allowed_tools", "mode": mode, "tools": [STOP]}
    body = respond(served, tool_choice=allowed, temperature=0, max_output_tokens=20).json()
    told_of = {} if mode == "required" else {"tools": [STOP]}
    choice = {"type": "function", "name": "stop"} if mode == "required" else mode
    alone = respond(served, **told_of, tool_choice=choice, temperature=0, max_output_tokens=20).json()
    (item,), (other,) = body["output"], alone["output"]
    assert item["type"] == kind
    assert without(item, "id", "call_id") == without(other, "id", "call_id")
    assert body["usage"]["input_tokens"] == alone["usage"]["input_tokens"]
    assert (body["tool_choice"]["mode"], body["tool_choice"]["tools"][0]["name"]) == (mode, "stop")
    assert [tool["name"] for tool in body["tools"]] == ["get_weather", "stop"]


@pytest.mark.parametrize("choice", ["required", "auto", "none", None])
def test_a_stream_tells_the_items_of_the_whole(served: Served, choice: str | None) -> None:
    asked = {"tool_choice": choice, "temperature": 0, "max_output_tokens": 40}
    body = respond(served, **asked).json()
    events = told(respond(served, **asked, stream=True).text)
    streamed, whole = (
        [without(item, "id", "call_id") for item in answer["output"]] for answer in (events[-1]["response"], body)
    )
    assert streamed == whole
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert {item["type"] for item in body["output"]} == {"function_call" if choice == "required" else "message"}


def of_pieces(pieces: list[str]) -> tuple[list[Any], list[Any]]:
    """Items and events of an answer that comes in these pieces, each of one token with a log probability."""
    output, parser, events = Output(), ToolParser(HERMES, frozenset(["stop"])), list[Any]()
    for number, piece in enumerate(pieces):
        noted = [{"token": piece, "logprob": -1.0}]
        events += output.add(read(parser, piece, final=number == len(pieces) - 1), noted)
    return output.items, events + output.end(cut=False)


def said(items: list[Any], wanted: str) -> list[Any]:
    """What the items of a kind say."""
    kind = {"message": lambda item: item["content"][0]["text"], "function_call": lambda item: item["arguments"]}[wanted]
    return [kind(item) for item in items if item["type"] == wanted]


@given(ARRIVING)
def test_events_build_the_items(pieces: list[str]) -> None:
    items, events = of_pieces(pieces)
    built: dict[int, Any] = {}
    for event in events:
        kind, place = event["type"].removeprefix("response."), event["output_index"]
        if kind == "output_item.added":
            assert place == len(built), "items are added in order"
            assert event["item"]["status"] == "in_progress"
            built[place] = event["item"] | {"text": "", "logprobs": [], "open": True}
            continue
        item = built[place]
        assert item["open"], "nothing comes behind the end of an item"
        if kind == "output_text.delta":
            item["text"] += event["delta"]
            item["logprobs"] += event["logprobs"]
        elif kind == "function_call_arguments.delta":
            item["arguments"] += event["delta"]
        elif kind == "output_text.done":
            assert event["text"] == item["text"]
            assert event["logprobs"][: len(item["logprobs"])] == item["logprobs"]
        elif kind == "function_call_arguments.done":
            assert event["arguments"] == item["arguments"]
        elif kind == "output_item.done":
            assert event["item"] == items[place]
            item["open"] = False
        assert event.get("item_id", items[place]["id"]) == items[place]["id"]
    assert not any(item["open"] for item in built.values())
    assert len(built) == len(items) >= 1
    assert all(item["status"] == "completed" for item in items)
    for item, each in zip(items, built.values(), strict=True):
        if item["type"] == "message":
            (part,) = item["content"]
            assert part["text"] == each["text"]
            assert len(part["logprobs"]) == len(pieces)
        else:
            assert item["arguments"] == each["arguments"] == '{"a": "é"}'
    at_once = of_pieces(["".join(pieces)])[0]
    for kind in ("message", "function_call"):
        assert said(items, kind) == said(at_once, kind)


def test_earlier_calls_are_those_of_the_chat(served: Served) -> None:
    turns = [{"role": "user", "content": "What is the weather?"}, {"role": "assistant", "content": "Let me see."}]
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"town": "Bonn"}'}}
    messages = ResponsesRequest.model_validate({"input": [*turns, CALL, RESULT]}).chat().messages
    told = [message.model_dump(exclude_none=True) for message in messages]
    assert told == [
        turns[0],
        turns[1] | {"tool_calls": [call]},
        {"role": "tool", "content": "Rain.", "tool_call_id": "call_1"},
    ]


def test_calls_at_one_time_are_one_message() -> None:
    items = [CallItem.model_validate(CALL)] * (MOST_TOOLS + 1)
    assert [len(message["tool_calls"]) for message in messages_of(items)] == [MOST_TOOLS, 1]


def test_a_conversation_goes_on(served: Served) -> None:
    """The output of an answer, as it is and as OpenAI's package dumps it, and the result of its call."""
    said = respond(served, tool_choice="required", temperature=1).json()["output"]
    through = [ResponseFunctionToolCall.model_validate(item).model_dump(by_alias=True) for item in said]
    result = {"type": "function_call_output", "call_id": said[0]["call_id"]}
    tokens = set()
    for output in (said, through):
        for told in ("Rain.", [{"type": "input_text", "text": "Rain."}]):
            turns = [{"role": "user", "content": "Hello"}, *copy.deepcopy(output), result | {"output": told}]
            tokens.add(respond(served, input=turns, max_output_tokens=3).json()["usage"]["input_tokens"])
    assert len(tokens) == 1


def test_tools_that_the_server_does_not_have_are_not_told(served: Served) -> None:
    others = [{"type": "web_search", "filters": {"allowed_domains": []}}, {"type": "namespace", "tools": [STOP]}]
    body = respond(served, tools=[WEATHER, *others], max_output_tokens=2).json()
    assert body["usage"] == respond(served, tools=[WEATHER], max_output_tokens=2).json()["usage"]
    assert [tool["type"] for tool in body["tools"]] == ["function", "web_search", "namespace"]


@pytest.mark.usefixtures("one_way")
def test_log_probabilities_are_the_chat_s(served: Served) -> None:
    asked = {"input": "Add", "tools": None, "temperature": 0, "max_output_tokens": 6}
    wanted = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    body = respond(served, **asked, **wanted).json()
    chat = {"messages": [{"role": "user", "content": "Add"}], "temperature": 0, "max_tokens": 6}
    said = served.client.post("/v1/chat/completions", json=chat | {"logprobs": True, "top_logprobs": 2}).json()
    (item,) = body["output"]
    assert item["content"][0]["logprobs"] == said["choices"][0]["logprobs"]["content"]
    assert body["top_logprobs"] == 2
    assert respond(served, **asked, top_logprobs=2).json()["output"][0]["content"] == item["content"]
    events = told(respond(served, **asked, **wanted, stream=True).text)
    deltas = [each for event in events if event["type"] == "response.output_text.delta" for each in event["logprobs"]]
    assert deltas == item["content"][0]["logprobs"]
    (item,) = respond(served, **asked).json()["output"]
    assert item["content"][0]["logprobs"] == []


def test_the_openai_package(served: Served) -> None:
    plain = respond(served, tool_choice=NAMED, temperature=0).json()["output"]

    async def use() -> None:
        own = httpx2.AsyncClient(transport=httpx2.ASGITransport(served.app))
        async with openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=own) as api:
            asked: Any = {"model": NAME, "tool_choice": NAMED, "temperature": 0, **ASKED}
            (whole,) = (await api.responses.create(**asked)).output
            assert isinstance(whole, ResponseFunctionToolCall)
            assert whole.arguments == plain[0]["arguments"]
            async with api.responses.stream(**asked) as stream:
                kinds = [event.type async for event in stream]
                (final,) = (await stream.get_final_response()).output
            assert "response.function_call_arguments.done" in kinds
            assert isinstance(final, ResponseFunctionToolCall)
            assert (final.name, final.arguments) == ("get_weather", plain[0]["arguments"])

    served.run(use)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"tools": [{"type": "function"}]}, "tools.0.name", "must be given"),
        ({"tools": [{"type": 3}]}, "tools.0.type", "must be a valid string"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, None, "must have tools"),
        (
            {"tool_choice": {"type": "function", "name": "other"}},
            None,
            "must have a tool_choice that names",
        ),
        ({"tools": [], "tool_choice": "required"}, None, "must have tools"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice", "must have the type 'function' or 'allowed_tools'"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "some", "tools": [STOP]}},
            "tool_choice.mode",
            "must be 'auto' or 'required'",
        ),
        ({"include": ["file_search_call.results"]}, "include.0", "must be 'message.output_text.logprobs' or"),
        ({"top_logprobs": 21}, "top_logprobs", "must be less than or equal to 20"),
        ({"input": [{"type": "function_call", "call_id": "1", "name": "f"}]}, "input.0.arguments", "must be given"),
        ({"input": [RESULT | {"output": None}]}, "input.0.output", "must be"),
        ({"input": ["Hello"]}, "input.0", "must have the type 'message' or 'function_call'"),
        (
            {"tools": [STOP | {"parameters": {"type": "nonsense"}}], "tool_choice": "required"},
            "tools",
            "must be a JSON schema",
        ),
    ],
    ids=str,
)
def test_a_wrong_field_is_named(served: Served, fields: dict[str, Any], param: str | None, message: str) -> None:
    answer = served.client.post("/v1/responses", json=ASKED | fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], message in error["message"]) == (param, True), error
