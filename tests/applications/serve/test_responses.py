"""/v1/responses: the same text as the chat's, in the objects and events of that endpoint."""

import json
from typing import Any

import httpx2
import openai
import pytest
from openai.types.responses import ResponseUsage
from served import NAME, Served

from lade.applications.serve.responses.request import ResponsesRequest

ASKED = {"input": "Add two numbers", "instructions": "Be short.", "temperature": 0, "max_output_tokens": 12}
MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Add two numbers"}]


def respond(served: Served, **fields: Any) -> Any:
    answer = served.client.post("/v1/responses", json=ASKED | fields)
    assert answer.status_code == 200, answer.text
    return answer


def text_of(body: Any) -> str:
    (message,) = body["output"]
    (part,) = message["content"]
    return str(part["text"])


def test_the_text_is_the_chat_s(served: Served) -> None:
    body = respond(served).json()
    asked = {"messages": MESSAGES, "temperature": 0, "max_tokens": 12}
    chat = served.client.post("/v1/chat/completions", json=asked).json()
    assert text_of(body) == chat["choices"][0]["message"]["content"]
    assert body["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    assert body["usage"]["output_tokens"] == 12
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert body["output"][0]["status"] == "incomplete"
    turns = [{"role": "user", "content": [{"type": "input_text", "text": "Add two numbers"}]}]
    assert text_of(respond(served, input=turns).json()) == text_of(body)
    assert text_of(respond(served, lade={"speculation": False}).json()) == text_of(body)


def test_a_schema(served: Served) -> None:
    properties = {"colour": {"enum": ["red", "green"]}}
    schema = {"type": "object", "properties": properties, "required": ["colour"], "additionalProperties": False}
    wanted = {"format": {"type": "json_schema", "name": "colour", "schema": schema, "strict": True}}
    body = respond(served, text=wanted, max_output_tokens=60).json()
    assert json.loads(text_of(body))["colour"] in ("red", "green")
    assert body["status"] == "completed"
    assert body["text"]["format"]["schema"] == schema


def test_its_events(served: Served) -> None:
    told = respond(served, stream=True).text
    parts = [part.split("\n") for part in told.split("\n\n") if part and not part.startswith(":")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in parts]
    assert [line.removeprefix("event: ") for line, _ in parts] == [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.incomplete"
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    body = respond(served).json()
    assert "".join(deltas) == text_of(body) == text_of(events[-1]["response"])
    usage = ResponseUsage(**events[-1]["response"]["usage"])  # which has all fields that the type wants
    assert usage.input_tokens_details.cache_write_tokens == usage.output_tokens_details.reasoning_tokens == 0
    assert usage.input_tokens_details.cached_tokens >= 0
    assert events[-1]["response"]["usage"] == body["usage"]
    assert [event["response"]["usage"] for event in events[:2]] == [None] * 2
    for each in (events[-1]["response"], body):
        assert each["metrics"]["speculative_decoding"]["num_spec_steps"] > 0
    assert "metrics" not in events[0]["response"]
    assert "[DONE]" not in told


def test_the_openai_package(served: Served) -> None:
    plain = text_of(respond(served).json())

    async def use() -> None:
        own = httpx2.AsyncClient(transport=httpx2.ASGITransport(served.app))
        async with openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=own) as api:
            asked: Any = {"model": NAME, **ASKED}
            whole = await api.responses.create(**asked)
            assert whole.output_text == plain
            async with api.responses.stream(**asked) as stream:
                told = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            assert "".join(told) == plain

    served.run(use)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": [{"role": "user"}]}, "input.0.content"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"tools": [{"name": "web_search"}]}, "tools.0.type"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"temperature": 3}, "temperature"),
        ({"min_tokens": 13}, None),
        ({"ignore_eos": True, "text": {"format": {"type": "json_object"}}}, None),
        ({"include_stop_str_in_output": True}, "include_stop_str_in_output"),
        ({"messages": []}, "messages"),
        ({"model": "gpt-9"}, "model"),
    ],
    ids=str,
)
def test_a_wrong_field_is_named(served: Served, fields: dict[str, Any], param: str | None) -> None:
    answer = served.client.post("/v1/responses", json=ASKED | fields)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == param, answer.text


def test_a_text_of_a_length_that_is_asked_for(served: Served) -> None:
    """As tools that measure servers ask for it."""
    bias = {"0": 100}  # the token that ends texts
    ended, fixed, least = (
        served.client.post("/v1/responses", json=ASKED | {"logit_bias": bias} | fields).json()
        for fields in ({}, {"ignore_eos": True}, {"min_tokens": 5})
    )
    assert (ended["status"], ended["usage"]["output_tokens"]) == ("completed", 1)
    assert (fixed["status"], fixed["usage"]["output_tokens"]) == ("incomplete", 12)
    assert (least["status"], least["usage"]["output_tokens"]) == ("completed", 6)


def test_its_fields_are_the_chat_s() -> None:
    shared = {"top_p": 0.5, "temperature": 0.5, "stream": True}
    shared |= {"top_k": 5, "min_p": 0.1, "seed": 3, "stop": ["a"], "logit_bias": {"1": 2.0}}
    shared |= {"frequency_penalty": 1.0, "presence_penalty": 0.5, "repetition_penalty": 1.1, "stop_token_ids": [7]}
    others = {"text": {"format": {"type": "json_object"}}, "lade": {"speculation": False}}
    turns = [{"role": role, "content": "x"} for role in ("developer", "system", "assistant", "user")]
    messages = ResponsesRequest.model_validate(ASKED | {"input": turns}).chat().messages
    assert [message.role for message in messages] == ["system", *(turn["role"] for turn in turns)]
    made = ResponsesRequest.model_validate(ASKED | shared | others).chat()
    assert {name: getattr(made, name) for name in shared} == shared
    assert (made.asked_tokens, made.lade.speculation) == (12, False)
    assert made.response_format is not None
    assert made.response_format.type == "json_object"


def test_what_was_not_asked_is_told_as_it_is_by_default(served: Served) -> None:
    body = served.client.post("/v1/responses", json={"input": "Add", "max_output_tokens": 1}).json()
    told = ("instructions", "metadata", "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p")
    assert [body[name] for name in told] == [None, {}, 1.0, {"format": {"type": "text"}}, "auto", [], 0, 1.0]
    assert (body["parallel_tool_calls"], body["previous_response_id"]) == (True, None)


def test_an_answer_is_a_part_of_the_next_input(served: Served) -> None:
    said = respond(served).json()
    through = [openai.types.responses.ResponseOutputMessage.model_validate(each) for each in said["output"]]
    for output in (said["output"], [each.model_dump() for each in through]):
        turns = [{"role": "user", "content": "Add two numbers"}, *output, {"role": "user", "content": "Now three."}]
        assert text_of(respond(served, input=turns).json())


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"input": "x " * 9000}, "input", "input must have at most"),
        (
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "nonsense"}}}},
            "text.format.schema",
            "text.format.schema must be a JSON schema",
        ),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input.0", "must have the type 'message'"),
    ],
    ids=["input", "schema", "item"],
)
def test_errors_name_the_fields_of_this_endpoint(served: Served, fields: Any, param: str, message: str) -> None:
    answer = served.client.post("/v1/responses", json=ASKED | fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], message in error["message"]) == (param, True), error
