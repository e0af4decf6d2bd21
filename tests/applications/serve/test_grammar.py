"""Answers that keep to a JSON schema: valid, and those of plain decoding with the same mask, drafts or not."""

import json
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from crowds import Asked, crowd
from served import PROMPT, Served
from transformers import LogitsProcessorList

from lade.applications.serve.grammar import GrammarMask, Grammars
from lade.applications.serve.relaxed import relaxed
from lade.applications.serve.service import ends_of

NAME = {"type": "string", "maxLength": 5}
Schema = dict[str, Any]


def record(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


SCHEMAS: dict[str, tuple[Schema, Callable[[Any], bool]]] = {
    "object": (
        record(first_name=NAME, last_name=NAME, years={"type": "integer", "minimum": 0, "maximum": 99}),
        lambda found: [*found] == ["first_name", "last_name", "years"] and 0 <= found["years"] <= 99,
    ),
    "enum": (record(colour={"enum": ["red", "green"]}), lambda found: found["colour"] in ("red", "green")),
    "const": (record(kind={"const": "invoice"}), lambda found: found == {"kind": "invoice"}),
    "array": (
        record(items={"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3}),
        lambda found: len(found["items"]) in (2, 3) and {type(each) for each in found["items"]} == {bool},
    ),
    "nested": (
        record(address=record(street=NAME, town=NAME), active={"type": "boolean"}),
        lambda found: [*found["address"]] == ["street", "town"] and isinstance(found["active"], bool),
    ),
    "any of": (
        record(value={"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 5, "maximum": 7}]}),
        lambda found: found["value"] in (None, 5, 6, 7),
    ),
    "reference": (
        {"$defs": {"name": NAME}, **record(a={"$ref": "#/$defs/name"}, b={"$ref": "#/$defs/name"})},
        lambda found: len(found["a"]) <= 5 and len(found["b"]) <= 5,
    ),
    "number": (record(price={"type": "integer", "enum": [1, 22, 333]}), lambda found: found["price"] in (1, 22, 333)),
    "not ASCII": (record(größe={"enum": ["é√", "😀"]}), lambda found: found["größe"] in ("é√", "😀")),
}


UNFOLLOWED: Schema = {
    "uniqueItems": True,
    "contains": {},
    "unevaluatedItems": False,
    "unevaluatedProperties": False,
    "propertyNames": {"maxLength": 3},
    "dependentRequired": {"a": ["b"]},
    "dependentSchemas": {"a": {}},
    "not": {},
    "if": {},
}
NOTHING: list[Schema] = [
    {"type": "array", "uniqueItems": False, "unevaluatedItems": {}, "minItems": 0},
    {"additionalProperties": True, "unevaluatedProperties": True, "minProperties": 0, "required": []},
    {"propertyNames": {}, "dependentRequired": {}, "dependentSchemas": {}, "dependencies": {}, "not": False},
    {"type": "string", "format": "password", "minLength": 0, "contentEncoding": "base64"},
    {"title": "A", "$comment": "b", "examples": [{"uniqueItems": False}], "default": {"not": False}, "x-own": 1},
    {"deprecated": True, "readOnly": True, "writeOnly": True, "nullable": True, "discriminator": {"propertyName": "a"}},
]


def fields(schema: Schema, **others: Any) -> dict[str, Any]:
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    return {"prompt": PROMPT, "seed": 3, "max_tokens": 120, "response_format": wanted} | others


def plain(served: Served, schema: Schema, **arguments: Any) -> str:
    ids = served.tokenizer(PROMPT)["input_ids"]
    mask = served.service.planner.grammars.mask(schema, len(ids), "schema")
    tokens = served.plain(seed=3, max_new_tokens=120, logits_processor=LogitsProcessorList([mask]), **arguments)
    return served.decode(PROMPT, tokens)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_sampled_answer_keeps_to_its_schema(served: Served, name: str) -> None:
    schema, holds = SCHEMAS[name]
    answers = [served.complete(**fields(schema, temperature=1, lade={"speculation": on})) for on in (True, False)]
    (text,) = {answer["choices"][0]["text"] for answer in answers}
    assert text == plain(served, schema, do_sample=True, top_k=0)
    assert answers[0]["choices"][0]["finish_reason"] == "stop"
    assert holds(json.loads(text)), text


def test_tokens_that_must_follow_are_drafted(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = SCHEMAS["object"][0]
    told = served.complete(**fields(schema))["metrics"]["speculative_decoding"]
    assert told["accepted_by_source"]["forced"] >= 5
    monkeypatch.setattr(GrammarMask, "forced", lambda self, tokens: [])
    without = served.complete(**fields(schema))["metrics"]["speculative_decoding"]
    assert told["num_spec_steps"] < 0.9 * without["num_spec_steps"]


def test_any_object(served: Served) -> None:
    asked = fields({}, response_format={"type": "json_object"}, temperature=0, logit_bias={"0": 50})
    (choice,) = served.complete(**asked)["choices"]
    assert isinstance(json.loads(choice["text"]), dict)
    free = served.text(response_format={"type": "text"}, max_tokens=5)
    assert free == served.text(max_tokens=5)


def test_a_chat(served: Served) -> None:
    asked = fields(SCHEMAS["enum"][0]) | {"messages": [{"role": "user", "content": "Which colour?"}], "n": 2}
    del asked["prompt"]
    answer = served.client.post("/v1/chat/completions", json=asked).json()
    assert all(json.loads(each["message"]["content"])["colour"] in ("red", "green") for each in answer["choices"])


def test_a_crowd_of_schemas(served: Served) -> None:
    """Greedy answers, some of them without drafts, beside one another."""
    draws = random.Random("schemas")
    names = draws.sample(list(SCHEMAS), k=len(SCHEMAS))
    switches = [{"stream": place % 2 == 0, "lade": {"speculation": place % 3 > 0}} for place in range(len(names))]
    asked = [
        Asked(fields(SCHEMAS[name][0], temperature=0, **others), draws.randrange(9), None)
        for name, others in zip(names, switches, strict=True)
    ]
    expected = [plain(served, SCHEMAS[name][0]) for name in names]
    answers = served.run(lambda: crowd(served, asked))
    assert [found[0] for found in answers] == [(text, "stop") for text in expected]
    assert all(SCHEMAS[name][1](json.loads(text)) for name, text in zip(names, expected, strict=True))


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        ({"type": "xml"}, "response_format"),
        ({}, "response_format"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, "response_format.json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}, "response_format.json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "a", "schema": 3}}, "response_format.json_schema.schema"),
        *(
            (
                {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
                "response_format.json_schema.schema",
            )
            for schema in ({"type": "nonsense"}, {"type": "string", "pattern": "("}, {"$ref": "#/$defs/none"})
        ),
    ],
    ids=str,
)
def test_what_is_no_schema_is_named(served: Served, wanted: Any, param: str) -> None:
    answer = served.client.post("/v1/completions", json=fields({}, response_format=wanted))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert "must" in answer.json()["error"]["message"]


@pytest.mark.parametrize("keyword", UNFOLLOWED)
def test_a_keyword_that_cannot_be_followed_is_named(served: Served, keyword: str) -> None:
    """The documents name these. A function with one can be told to the model, but no call of it can be forced."""
    schema = {"type": "object", "properties": {"list": {keyword: UNFOLLOWED[keyword]}}}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    answer = served.client.post("/v1/completions", json=fields({}, response_format=form))
    told = f'must be a JSON schema that can be followed, got what cannot (Unimplemented keys: ["{keyword}"])'
    assert (answer.status_code, told in answer.json()["error"]["message"]) == (400, True), answer.text
    functions = [{"name": "plain", "parameters": {"type": "object"}}, {"name": "other", "parameters": schema}]
    chat = {
        "messages": [{"role": "user", "content": "a"}],
        "tools": [{"type": "function", "function": each} for each in functions],
        "max_tokens": 1,
    }
    assert served.client.post("/v1/chat/completions", json=chat).status_code == 200
    forced = served.client.post("/v1/chat/completions", json=chat | {"tool_choice": "required"})
    error = forced.json()["error"]
    assert error["message"] == f"tools must have functions that can be called, got other: parameters {told}"
    assert error["param"] == "tools"


@pytest.mark.parametrize("asking", NOTHING, ids=range(len(NOTHING)))
def test_a_keyword_that_asks_nothing_is_taken(served: Served, asking: Schema) -> None:
    """As the packages of clients write schemas, at whatever place."""
    for schema in (asking, {"anyOf": [asking]}, {"type": "array", "items": asking}, record(a=asking)):
        whole = record(value=schema, uniqueItems={"enum": [False]})
        assert served.complete(**fields(whole, max_tokens=3))["choices"][0]["finish_reason"] == "length"
        tool = {"type": "function", "function": {"name": "f", "parameters": whole}}
        chat = {"messages": [{"role": "user", "content": "a"}], "tools": [tool], "max_tokens": 1}
        answer = served.client.post("/v1/chat/completions", json=chat | {"tool_choice": "required"})
        assert answer.status_code == 200, answer.text


def test_what_only_looks_like_a_keyword_stays() -> None:
    schema = record(**{"not": False, "uniqueItems": False, "format": {"enum": ["password", {"not": False}]}})
    assert relaxed(schema) == schema
    assert relaxed({"properties": {"a": {"format": "idn-email"}}}) == {"properties": {"a": {"format": "idn-email"}}}
    assert relaxed({"minItems": 0, "uniqueItems": 0}) == {"minItems": 0, "uniqueItems": 0}, "no boolean"


def test_a_deep_schema_is_refused(served: Served) -> None:
    schema: Schema = {}
    for _ in range(400):
        schema = {"type": "array", "items": schema}
    answer = served.client.post("/v1/completions", json=fields(schema))
    assert (answer.status_code, "recursion" in answer.text) == (400, True), answer.text


def test_a_mask_is_as_wide_as_the_scores(served: Served) -> None:
    """Whatever entries the model has beyond the tokenizer's."""
    grammars = Grammars(served.tokenizer, 8192, ends_of(served.model))
    for width in (8000, 8192, 8300):
        mask = grammars.mask(SCHEMAS["const"][0], 1, "schema")
        found = mask(torch.tensor([[5]]), torch.zeros(1, width))
        assert found.shape == (1, width)
        allowed = (found[0] == 0).nonzero()[:, 0].tolist()
        assert {served.tokenizer.decode([token])[0] for token in allowed} == {"{"}


def test_a_model_without_an_end_has_no_schemas(served: Served) -> None:
    from lade.applications.serve.errors import APIError

    with pytest.raises(APIError, match="response_format must be left out"):
        Grammars(served.tokenizer, 8192, frozenset()).mask({}, 1, "schema")


STRUCTURED: dict[str, tuple[dict[str, Any], str]] = {
    "regex": ({"regex": "[a-c]{3}-[0-9]{2}"}, "[a-c]{3}-[0-9]{2}"),
    "choice": ({"choice": ["yes", 'no "é"\n', "perhaps"]}, 'yes|no "é"\n|perhaps'),
    "json": ({"json": SCHEMAS["enum"][0]}, '{"colour": "(red|green)"}'),
}


@pytest.mark.parametrize("name", STRUCTURED)
def test_structured_outputs_as_vllm_takes_them(served: Served, name: str) -> None:
    wanted, pattern = STRUCTURED[name]
    asked = {"temperature": 1, "max_tokens": 60, "structured_outputs": wanted}
    for seed in range(4):
        texts = {served.text(**asked, seed=seed, lade={"speculation": drafts}) for drafts in (True, False)}
        assert len(texts) == 1
        assert re.fullmatch(pattern, texts.pop())
    whole = served.complete(**asked | {"max_tokens": 100})
    assert whole["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("wanted", "param", "message"),
    [
        ({"regex": "("}, "structured_outputs.regex", "must be a regular expression that can be followed"),
        ({"regex": "a", "choice": ["b"]}, "structured_outputs", "must have exactly one of"),
        ({}, "structured_outputs", "must have exactly one of"),
        ({"choice": [""]}, "structured_outputs.choice.0", "must have at least 1 character"),
        ({"grammar": "start: x"}, "structured_outputs.grammar", "must be left out"),
    ],
    ids=str,
)
def test_wrong_structured_outputs(served: Served, wanted: dict[str, Any], param: str, message: str) -> None:
    answer = served.client.post("/v1/completions", json={"prompt": PROMPT, "structured_outputs": wanted})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], message in error["message"]) == (param, True), error


@pytest.mark.parametrize("other", [{"response_format": {"type": "json_object"}}, {"tool_choice": "required"}], ids=str)
def test_an_answer_keeps_to_one_grammar(served: Served, other: dict[str, Any]) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    asked = {"messages": [{"role": "user", "content": "x"}], "tools": tools, "structured_outputs": {"regex": "a"}}
    answer = served.client.post("/v1/chat/completions", json=asked | other)
    assert answer.status_code == 400
    assert "must have either" in answer.json()["error"]["message"]


@pytest.mark.parametrize("field", [{"ignore_eos": True}, {"min_tokens": 50}], ids=str)
def test_a_grammar_ends_its_answer(served: Served, field: dict[str, Any]) -> None:
    asked = {"prompt": PROMPT, "structured_outputs": {"regex": "a"}}
    answer = served.client.post("/v1/completions", json=asked | field)
    assert answer.status_code == 400
    assert "only without structured_outputs, which ends the answer" in answer.json()["error"]["message"]
