"""Calls that the most tokens of an answer cut short: their names and what there is of their arguments, everywhere."""

import json
from typing import Any

import pytest
from served import Served, events

from lade.applications.serve.begun import object_so_far
from lade.applications.serve.tools import BARE, HERMES, LLAMA, MISTRAL, ToolFormat, ToolParser

NAMES = frozenset(["stop", "go"])
PARAMETERS = {
    "type": "object",
    "properties": {"town": {"enum": ["Bonn am Rhein"]}, "days": {"enum": [12345]}},
    "required": ["town", "days"],
    "additionalProperties": False,
}
MOST = range(1, 60)


@pytest.mark.parametrize("form", [HERMES, MISTRAL, LLAMA, BARE], ids=["hermes", "mistral", "llama", "bare"])
def test_every_beginning_of_a_call(form: ToolFormat) -> None:
    arguments = '{"a": [1, "é<"], "b": {}}'
    before, behind = form.around("stop")
    whole = form.begin + before + arguments + behind + form.end
    named = whole.index('stop"') + len('stop"')
    begin = len(form.begin + before)
    for size in range(len(whole) + 1):
        parsed = ToolParser(form, NAMES).add(whole[:size], final=True, cut=True)
        if size < named:
            assert (parsed.text, parsed.calls, parsed.cut) == (whole[:size], [], False)
            continue
        (call,) = parsed.calls
        so_far = whole[begin : min(size, begin + len(arguments))]
        assert (parsed.text, call["function"]) == ("", {"name": "stop", "arguments": so_far})
        assert parsed.cut == (size <= begin + len(arguments)), whole[:size]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "other", "arguments": {"a',
        '{"name": "stop", "arguments": 3',
        '{"name": "stop", "arguments": {no JSON',
        '{"name": "stop", "answer',
        '{"name": "stop"} and more',
        '{"name": "stop"}, {"name": "stop"',
        '[{"name": "stop"}, 3',
        '{"name": "stop", "arguments": ' + '{"a": ' * 5000,
    ],
    ids=range(8),
)
def test_what_begins_no_call_is_text(text: str) -> None:
    parsed = ToolParser(BARE, NAMES).add(text, final=True, cut=True)
    assert (parsed.text, parsed.calls) == (text, [])


def test_a_call_that_the_model_ends_itself_is_not_cut() -> None:
    begun = '<tool_call>{"name": "stop", "arguments": {"a'
    assert not ToolParser(HERMES, NAMES).add(begun, final=True).calls
    parsed = ToolParser(HERMES, NAMES).add(f"{begun}</tool_call>", final=True, cut=True)
    assert (parsed.text, parsed.calls) == (f"{begun}</tool_call>", [])


def test_calls_before_the_one_that_is_cut() -> None:
    first = '{"name": "go", "arguments": {}}'
    for last, names, cut in (('{"name": "stop", "arg', ["go", "stop"], True), ('{"na', ["go"], False)):
        parsed = ToolParser(MISTRAL, NAMES).add(f"See. [TOOL_CALLS][{first}, {last}", final=True, cut=True)
        assert [call["function"]["name"] for call in parsed.calls] == names
        assert (parsed.text, parsed.cut) == ("See.", cut)


def test_members_so_far() -> None:
    assert object_so_far("") == object_so_far('{"a') == object_so_far('{"a": "b') == {}
    assert object_so_far('{"a": "b", "c": [1, ') == {"a": "b", "c": [1]}
    assert object_so_far("[1") is None
    assert object_so_far("no") is None


def post(served: Served, path: str, asked: dict[str, Any]) -> Any:
    answer = served.client.post(path, json={"temperature": 0} | asked)
    assert answer.status_code == 200, answer.text
    return answer


def told(answer: Any) -> list[Any]:
    """The events of a stream that names their types."""
    lines = [line for line in answer.text.split("\n") if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_a_chat_tells_the_beginning(served: Served) -> None:
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
    asked = {"messages": [{"role": "user", "content": "Hi"}], "tools": [tool], "tool_choice": "required"}
    whole = post(served, "/v1/chat/completions", asked).json()["choices"][0]["message"]["tool_calls"][0]["function"]
    begun = set()
    for most in MOST:
        (choice,) = post(served, "/v1/chat/completions", asked | {"max_tokens": most}).json()["choices"]
        stream = events(post(served, "/v1/chat/completions", asked | {"max_tokens": most, "stream": True}).text)
        parts = [part for chunk in stream[:-1] for part in chunk["choices"]]
        message, streamed = choice["message"], [each for part in parts for each in part["delta"].get("tool_calls", [])]
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
        assert "".join(part["delta"].get("content", "") for part in parts) == (message["content"] or "")
        assert [each["function"] for each in streamed] == [each["function"] for each in message.get("tool_calls", [])]
        if choice["finish_reason"] == "tool_calls":
            break
        assert choice["finish_reason"] == "length"
        if streamed:
            assert streamed[0]["function"]["name"] == "get_weather"
            assert whole["arguments"].startswith(streamed[0]["function"]["arguments"])
            assert message["content"] is None
            begun.add(streamed[0]["function"]["arguments"])
    assert len(begun) > 3


def test_a_response_has_an_incomplete_item(served: Served) -> None:
    tool = {"type": "function", "name": "get_weather", "parameters": PARAMETERS}
    asked = {"input": "Hi", "tools": [tool], "tool_choice": "required"}
    begun = set()
    for most in MOST:
        body = post(served, "/v1/responses", asked | {"max_output_tokens": most}).json()
        stream = told(post(served, "/v1/responses", asked | {"max_output_tokens": most, "stream": True}))
        (item,), (streamed,) = body["output"], stream[-1]["response"]["output"]
        assert stream[-1]["type"] == f"response.{body['status']}"
        assert (item["type"], item.get("arguments")) == (streamed["type"], streamed.get("arguments"))
        if body["status"] == "completed":
            break
        assert item["status"] == streamed["status"] == "incomplete" or item["arguments"].endswith("}")
        if item["type"] == "function_call" and item["status"] == "incomplete":
            deltas = [event["delta"] for event in stream if event["type"] == "response.function_call_arguments.delta"]
            assert "".join(deltas) == item["arguments"]
            assert body["incomplete_details"] == {"reason": "max_output_tokens"}
            begun.add(item["arguments"])
    assert len(begun) > 3


def test_a_message_has_the_members_so_far(served: Served) -> None:
    tool = {"name": "get_weather", "input_schema": PARAMETERS}
    asked = {"messages": [{"role": "user", "content": "Hi"}], "tools": [tool], "tool_choice": {"type": "any"}}
    inputs = list[Any]()
    for most in MOST:
        body = post(served, "/v1/messages", asked | {"max_tokens": most}).json()
        stream = told(post(served, "/v1/messages", asked | {"max_tokens": most, "stream": True}))
        if body["stop_reason"] == "tool_use":
            break
        assert body["stop_reason"] == stream[-2]["delta"]["stop_reason"] == "max_tokens"
        (block,) = body["content"]
        if block["type"] == "tool_use":
            deltas = [each["delta"] for each in stream if each["type"] == "content_block_delta"]
            assert object_so_far("".join(each["partial_json"] for each in deltas)) == block["input"]
            inputs.append(block["input"])
    assert inputs[0] == {}
    assert {"town": "Bonn am Rhein"} in inputs
    assert all(json.dumps(each) for each in inputs)
