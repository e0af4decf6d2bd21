"""Calls of functions: enforced by the grammar, read from the text however it arrives, told as OpenAI tells them."""

import copy
import json
from typing import Any

import pytest
from arriving import pieces_of
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessage, ParsedChatCompletionMessage
from served import NAME, Served, events, serving
from transformers import LogitsProcessorList

from lade.applications.serve.chat_request import ChatRequest
from lade.applications.serve.errors import APIError
from lade.applications.serve.tools import BARE, HERMES, LLAMA, MISTRAL, ToolParser, arguments_of, format_of

WEATHER = {
    "name": "get_weather",
    "description": "The weather of a town.",
    "parameters": {
        "type": "object",
        "properties": {"town": {"enum": ["Bonn", "Köln"]}, "days": {"type": "integer", "minimum": 1, "maximum": 5}},
        "required": ["town", "days"],
        "additionalProperties": False,
    },
}
STOP: dict[str, Any] = {
    "name": "stop",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
}
TOOLS = [{"type": "function", "function": function} for function in (WEATHER, STOP)]
SAYS = [{"role": "user", "content": "What is the weather?"}]
CALL = {"name": "stop", "arguments": {}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
TEXTS = {
    "hermes": (HERMES, ["", "Let me see. ", "a < b"], "<tool_call>\n{}\n</tool_call>"),
    "mistral": (MISTRAL, ["", "Let me see. "], "[TOOL_CALLS][{}]"),
    "bare": (BARE, [""], "{}"),
}


@given(st.sampled_from(sorted(TEXTS)), st.data())
def test_calls_are_read_however_the_text_arrives(name: str, data: st.DataObject) -> None:
    form, befores, pattern = TEXTS[name]
    before = data.draw(st.sampled_from(befores))
    calls = data.draw(st.lists(st.sampled_from(["stop", "get_weather"]), max_size=2 if form is HERMES else 1))
    written = [json.dumps({"name": each, form.arguments: {"a": "é{}"}}) for each in calls]
    whole = before + "\n".join(pattern.replace("{}", each, 1) for each in written)
    pieces = data.draw(pieces_of(whole))
    parser = ToolParser(form, frozenset(["stop", "get_weather"]))
    parsed = [parser.add(piece, final=number == len(pieces) - 1) for number, piece in enumerate(pieces)]
    found = [call for each in parsed for call in each.calls]
    assert [call["function"]["name"] for call in found] == calls
    assert [json.loads(call["function"]["arguments"]) for call in found] == [{"a": "é{}"}] * len(calls)
    assert [call["index"] for call in found] == list(range(len(calls)))
    assert len({call["id"] for call in found}) == len(calls)
    text = "".join(each.text for each in parsed)
    assert text == (before.rstrip() if calls else before), "white space around calls is none of the text"


def test_white_space_behind_a_call_is_none_of_the_text() -> None:
    parser = ToolParser(HERMES, frozenset(["stop"]))
    pieces = [f"Now <tool_call>{json.dumps(CALL)}</tool_call>", "\n", "", " \n", " Done. ", "\n"]
    assert [parser.add(piece, final=False).text for piece in pieces] == ["Now", "", "", "", "Done.", ""]
    assert parser.add("", final=True).text == " \n"


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\nno JSON\n</tool_call>",
        "<tool_call>",
        '<tool_call>{"name": "unknown"}</tool_call> after',
        "a <tool",
    ],
)
def test_what_is_no_call_is_text(text: str) -> None:
    parser = ToolParser(HERMES, frozenset(["stop"]))
    pieces = [parser.add(character, final=False) for character in text] + [parser.add("", final=True)]
    assert "".join(piece.text for piece in pieces) == text
    assert not parser.found


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "unknown"}',
        "[1, 2]",
        '[{"name": "stop"}, 1]',
        "{",
        '{"a": 1} and more',
        "plain",
        'See {"name": "stop"}',
        " ",
    ],
)
def test_bare_json_that_is_no_call_is_text(text: str) -> None:
    parser = ToolParser(BARE, frozenset(["stop"]))
    pieces = [parser.add(character, final=False) for character in text] + [parser.add("", final=True)]
    assert "".join(piece.text for piece in pieces) == text
    assert not parser.found


@pytest.mark.parametrize(
    ("written", "arguments"),
    [('{"name": "stop"}', "{}"), (json.dumps(CALL | {"arguments": '{"a":1}'}), '{"a":1}')],
    ids=["none", "text"],
)
def test_arguments_that_are_no_object(written: str, arguments: str) -> None:
    """A call whose end the model leaves out is one, too."""
    for form, text in ((BARE, written), (HERMES, f"<tool_call>{written}")):
        (call,) = ToolParser(form, frozenset(["stop"])).add(text, final=True).calls
        assert call["function"]["arguments"] == arguments


def test_parameters_that_say_nothing_are_those_of_an_object() -> None:
    assert arguments_of({"parameters": {}}) == {"type": "object"}


def test_the_format_is_the_template_s() -> None:
    assert format_of(None) is format_of("{{ messages }}") is BARE
    assert format_of("... <tool_call> ...") is HERMES
    assert format_of("... [TOOL_CALLS] ...") is MISTRAL
    assert format_of('{"name": function name, "parameters": ...}') is LLAMA


def chat(served: Served, **fields: Any) -> Any:
    asked = {"messages": SAYS, "tools": TOOLS, "max_tokens": 100, "seed": 2}
    answer = served.client.post("/v1/chat/completions", json=asked | fields)
    assert answer.status_code == 200, answer.text
    return events(answer.text) if fields.get("stream") else answer.json()


TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}{{ tools | tojson if tools }} MARK"


@pytest.fixture(scope="module", params=["", "<tool_call>", "[TOOL_CALLS]", '"parameters"', "special"])
def calling(request: pytest.FixtureRequest, pair: Any) -> Any:
    """Servers whose templates show calls in different ways; the last one's marker is a special token."""
    model, tokenizer = pair
    tokenizer, marker = copy.deepcopy(tokenizer), request.param
    if marker == "special":
        marker, model = "[TOOL_CALLS]", copy.deepcopy(model)
        tokenizer.add_special_tokens({"additional_special_tokens": [marker]})
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    if marker:
        tokenizer.chat_template = TEMPLATE.replace("MARK", marker)
    with serving((model, tokenizer)) as served:
        yield served


def call_of(told: Any) -> Any:
    """The one call of an answer, which it is made of."""
    (choice,) = told["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "get_weather":
        assert arguments["town"] in ("Bonn", "Köln")
        assert 1 <= arguments["days"] <= 5
    return call["function"]


def test_a_call_that_is_asked_for_is_made(calling: Served) -> None:
    asked = {"tool_choice": "required", "temperature": 1}
    call, plain = (call_of(chat(calling, **asked, lade={"speculation": drafts})) for drafts in (True, False))
    assert call["name"] in ("get_weather", "stop")
    assert call == plain
    stream = chat(calling, **asked, stream=True)
    parts = [part for chunk in stream[:-1] for part in chunk["choices"]]
    (streamed,) = [call for part in parts for call in part["delta"].get("tool_calls", [])]
    assert streamed["function"] == call
    assert "".join(part["delta"].get("content", "") for part in parts) == ""
    assert (parts[-1]["delta"], parts[-1]["finish_reason"]) == ({}, "tool_calls"), "behind the call, as OpenAI sends it"
    assert all(part["delta"] for part in parts[:-1])
    formed = chat(calling, **asked, response_format={"type": "json_object"})
    assert call_of(formed) == call, "a format is that of a text"
    assert call_of(chat(calling, tool_choice=NAMED, temperature=0))["name"] == "get_weather"


def allowed(mode: str, *functions: dict[str, Any]) -> dict[str, Any]:
    tools = [{"type": "function", "function": each} for each in functions]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def test_only_allowed_functions_are_called(calling: Served) -> None:
    """The prompt tells of all functions, as OpenAI's does, so that it stays the same; where no grammar keeps the answer
    to the allowed ones, only of these, so that the model writes no other call."""
    forced = chat(calling, tool_choice=allowed("required", {"name": "stop"}), temperature=1)
    assert call_of(forced) == {"name": "stop", "arguments": "{}"}
    assert forced["usage"]["prompt_tokens"] == chat(calling, tool_choice="required")["usage"]["prompt_tokens"]
    both = chat(calling, tool_choice=allowed("required", STOP, WEATHER), temperature=1)
    assert call_of(both) == call_of(chat(calling, tool_choice="required", temperature=1))
    free, alone = (
        chat(calling, temperature=0, max_tokens=4, response_format={"type": "json_object"}, **fields)
        for fields in ({"tool_choice": allowed("auto", STOP)}, {"tools": TOOLS[1:]})
    )
    assert free["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]
    assert free["choices"][0]["message"] == alone["choices"][0]["message"]


def test_an_answer_that_keeps_to_a_schema_may_be_a_call(calling: Served) -> None:
    """As agents ask for it, whose functions lead to an answer of a type."""
    planner, schema = calling.service.planner, record({"colour": {"enum": ["red", "green"]}})
    alike = record({"name": {"type": "string"}, "arguments": {"type": "integer"}})
    form: Any = {"type": "json_schema", "json_schema": {"name": "a"}}
    asked = {"messages": SAYS, "tools": TOOLS, "response_format": form}
    (begin, end), written = planner.prompts.tool_format.around("stop"), planner.prompts.tool_format
    call = f"{written.begin}{begin}{{}}{end}{written.end}"

    def read(text: str, definition: dict[str, Any]) -> None:
        form["json_schema"]["schema"] = definition
        mask = planner._mask(ChatRequest.model_validate(asked), 0)
        assert mask is not None
        mask._read(planner.prompts._encode(text, special=False))

    for text, definition in ((call, schema), (call, alike), (NEITHER, alike), ('{"colour": "red"}', schema)):
        read(text, definition)
    with pytest.raises(APIError, match="cannot"):
        read(NEITHER, schema)
    form["json_schema"]["schema"] = schema
    for seed in range(4):
        told = chat(calling, response_format=form, temperature=1, seed=seed)
        if told["choices"][0]["finish_reason"] == "tool_calls":
            call_of(told)
        else:
            assert json.loads(told["choices"][0]["message"]["content"])["colour"] in ("red", "green")
    form["json_schema"]["schema"] = {"type": "nonsense"}
    error = calling.client.post("/v1/chat/completions", json=asked).json()["error"]
    assert error["param"] == "response_format.json_schema.schema"


def test_the_text_is_plain_decoding_s_with_the_mask(served: Served) -> None:
    prompts = served.service.planner.prompts
    ids = prompts.of_messages(SAYS, [WEATHER, STOP])
    mask = served.service.planner.grammars.call_mask(prompts.tool_format, [WEATHER], len(ids))
    plain = served.plain(ids, max_new_tokens=100, logits_processor=LogitsProcessorList([mask]))
    written = json.loads(served.decode(ids, plain[:-1]))
    (call,) = chat(served, tool_choice=NAMED, temperature=0)["choices"][0]["message"]["tool_calls"]
    assert written == {"name": "get_weather", "arguments": json.loads(call["function"]["arguments"])}


def test_an_answer_may_be_text(calling: Served) -> None:
    for fields in ({}, {"tool_choice": "auto"}, {"tool_choice": "none"}):
        (choice,) = chat(calling, temperature=0, max_tokens=8, logit_bias={"0": -100}, **fields)["choices"]
        assert choice["message"]["content"]
        assert "tool_calls" not in choice["message"]
        assert choice["finish_reason"] == "length"


def test_functions_are_told_to_the_model(calling: Served) -> None:
    prompts = calling.service.planner.prompts
    with_them, without = (prompts.of_messages(SAYS, tools) for tools in ([WEATHER], []))
    assert "get_weather" in calling.tokenizer.decode(with_them)
    assert "get_weather" not in calling.tokenizer.decode(without)
    told, untold, none = (
        chat(calling, max_tokens=1, **fields)["usage"]["prompt_tokens"]
        for fields in ({}, {"tool_choice": "none"}, {"tools": None})
    )
    assert told > untold == none


def test_earlier_calls_and_their_results(calling: Served) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"town": "Bonn"}'}}
    messages = [
        *SAYS,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Rain."},
    ]
    assert chat(calling, messages=messages, max_tokens=3)["model"] == NAME
    prompts = calling.service.planner
    (text,) = prompts.chat(ChatRequest.model_validate({"messages": messages, "max_tokens": 3}))
    assert "Bonn" in calling.tokenizer.decode(text.prompt), "the template does not read calls, so they are text"
    broken = copy.deepcopy(messages)
    broken[1]["tool_calls"][0]["function"]["arguments"] = "no JSON"  # type: ignore[index]
    assert chat(calling, messages=broken, max_tokens=3)["model"] == NAME


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "retrieval"}]}, "tools.0"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, None),
        ({"tools": [], "tool_choice": "required"}, None),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tool_choice": allowed("none", STOP)}, "tool_choice.allowed_tools.mode"),
        ({"tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
        ({"tool_choice": allowed("auto", STOP, {"name": "other"})}, None),
        ({"tool_choice": "required", "structured_outputs": {"json_object": True}}, None),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [{"id": "1"}]}]}, "messages.0.tool_calls.0"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "nonsense"}}}],
                "tool_choice": "required",
            },
            "tools",
        ),
    ],
    ids=str,
)
def test_wrong_tools_are_named(served: Served, fields: dict[str, Any], param: str | None) -> None:
    asked = {"messages": SAYS, "tools": TOOLS, "max_tokens": 5}
    answer = served.client.post("/v1/chat/completions", json=asked | fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] is None if param is None else error["param"].startswith(param)
    assert "must" in error["message"]


def test_a_template_that_reads_calls_gets_objects(pair: Any) -> None:
    model, tokenizer = pair[0], copy.deepcopy(pair[1])
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}"
    )
    function = {"name": "stop", "arguments": '{"at": 1}', "parsed_arguments": {"at": 1}}
    call = {"id": "call_1", "type": "function", "function": function}
    asked = {"messages": [*SAYS, {"role": "assistant", "content": None, "tool_calls": [call]}]}
    with serving((model, tokenizer)) as served:
        (text,) = served.service.planner.chat(ChatRequest.model_validate(asked))
    told = tokenizer.decode(text.prompt)
    assert '"function": {"name": "stop", "arguments": {"at": 1}}' in told


def function(name: str, parameters: dict[str, Any] | None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name} | ({"parameters": parameters} if parameters else {})}


def record(properties: dict[str, Any], **others: Any) -> dict[str, Any]:
    fixed = {"type": "object", "required": [*properties], "additionalProperties": False}
    return fixed | {"properties": properties} | others


NEITHER = '{"name": "stopped", "arguments": 3}'
COLOURS, ANIMALS = {"enum": ["red", "green"]}, {"enum": ["cat", "dog"]}
REFERENCES = {
    "equal names": (record({"a": {"$ref": "#/$defs/A"}}, **{"$defs": {"A": COLOURS}}), {"a"}),
    "properties": (record({"name": COLOURS, "alias": {"$ref": "#/properties/name"}}), {"name", "alias"}),
    "draft 7": (record({"a": {"$ref": "#/definitions/A"}}, definitions={"A": COLOURS}), {"a"}),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_references_are_those_of_the_function(calling: Served, name: str) -> None:
    parameters, names = REFERENCES[name]
    other = record({"a": {"$ref": "#/$defs/A"}}, **{"$defs": {"A": ANIMALS}})
    tools = [function("paint", parameters), function("feed", other)]
    for seed in range(4):
        told = chat(calling, tools=tools, tool_choice="required", temperature=1, seed=seed)
        (call,) = told["choices"][0]["message"]["tool_calls"]
        arguments = json.loads(call["function"]["arguments"])
        paints = call["function"]["name"] == "paint"
        assert set(arguments) == (names if paints else {"a"})
        assert set(arguments.values()) <= set((COLOURS if paints else ANIMALS)["enum"])


def test_a_function_without_parameters_takes_none(calling: Served) -> None:
    told = chat(calling, tools=[function("stop", None)], tool_choice="required", temperature=1)
    assert call_of(told) == {"name": "stop", "arguments": "{}"}


def test_messages_as_openai_s_package_dumps_them(served: Served) -> None:
    said = chat(served, tools=TOOLS, tool_choice="required", temperature=1)["choices"][0]["message"]
    dumped = ChatCompletionMessage.model_validate(said).model_dump()
    parsed = ParsedChatCompletionMessage[Any].model_validate(said | {"parsed": None}).model_dump()
    assert {"annotations", "function_call"} <= set(dumped)
    assert "parsed_arguments" in parsed["tool_calls"][0]["function"]
    results = [{"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "Rain."}]
    plain, *others = (chat(served, messages=[*SAYS, each, *results], max_tokens=3) for each in (said, dumped, parsed))
    for other in others:
        assert other["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
