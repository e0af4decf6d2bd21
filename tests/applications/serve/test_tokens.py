"""Prompts: the tokens that /tokenize tells are those that answers continue; how a request steers the chat template."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from served import NAME, PROMPT, Served, serving

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    "{{ tools | tojson if tools }}{{ 'quiet' if quiet }}{% if add_generation_prompt %}<assistant>{% endif %}"
)
SAYS = [{"role": "user", "content": "Add é"}]
BEGUN = [*SAYS, {"role": "assistant", "content": "def add("}]
TOOL = {"type": "function", "function": {"name": "stop"}}


@pytest.fixture(scope="module")
def templated(pair: Any) -> Iterator[Served]:
    """A server whose model has a chat template with a variable."""
    tokenizer = copy.deepcopy(pair[1])
    tokenizer.chat_template = TEMPLATE
    with serving((pair[0], tokenizer)) as found:
        yield found


def post(served: Served, path: str, **fields: Any) -> Any:
    answer = served.client.post(path, json=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def text_of(served: Served, **fields: Any) -> str:
    """The text of a conversation's prompt."""
    return str(post(served, "/detokenize", tokens=post(served, "/tokenize", **fields)["tokens"])["prompt"])


def test_a_prompt_and_back(served: Served) -> None:
    told = post(served, "/tokenize", prompt=PROMPT, model=NAME, return_token_strs=True)
    assert told["tokens"] == served.tokenizer(PROMPT)["input_ids"]
    assert told["count"] == len(told["tokens"]) == served.complete(max_tokens=1)["usage"]["prompt_tokens"]
    assert told["token_strs"] == served.tokenizer.convert_ids_to_tokens(told["tokens"])
    assert told["max_model_len"] == served.client.get("/v1/models").json()["data"][0]["max_model_len"]
    assert post(served, "/detokenize", tokens=told["tokens"])["prompt"] == served.tokenizer.decode(told["tokens"])
    assert post(served, "/detokenize", tokens=[])["prompt"] == ""


def test_an_empty_text(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the special tokens of the tokenizer, if any. Without any there is nothing that an answer continues."""
    tokens = [post(served, "/tokenize", prompt="", add_special_tokens=special)["tokens"] for special in (True, False)]
    assert tokens == [[0], []]
    assert served.complete("", max_tokens=1)["usage"]["prompt_tokens"] == 1
    monkeypatch.setattr(served.service.planner.prompts, "_encode", lambda text, special: [])
    error = served.client.post("/v1/completions", json={"prompt": ""}).json()["error"]
    assert (error["param"], error["message"]) == ("prompt", "prompt must be a text of at least one token, got ''")


def test_special_tokens_of_a_prompt(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[bool]()
    prompts = served.service.planner.prompts
    encode = prompts._encode
    monkeypatch.setattr(prompts, "_encode", lambda text, special: asked.append(special) or encode(text, special))
    for given in (None, True, False):
        assert post(served, "/tokenize", prompt="a", add_special_tokens=given)["token_strs"] is None
    assert asked == [True, True, False]


def test_the_prompt_of_a_chat(templated: Served) -> None:
    assert text_of(templated, messages=SAYS) == "<user>Add é</user><assistant>"
    assert text_of(templated, messages=SAYS, add_generation_prompt=False) == "<user>Add é</user>"
    assert text_of(templated, messages=SAYS, chat_template_kwargs={"quiet": True}).endswith("</user>quiet<assistant>")
    strict = {"type": "function", "function": {"name": "stop", "strict": True}}
    for tool in (TOOL, strict):
        assert '{"name": "stop"}' in text_of(templated, messages=SAYS, tools=[tool]), "what says nothing is not told"
    continued = text_of(templated, messages=BEGUN, continue_final_message=True)
    assert continued == "<user>Add é</user><assistant>def add("


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": SAYS},
        {"messages": SAYS, "add_generation_prompt": False},
        {"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": False},
        {"messages": SAYS, "chat_template_kwargs": {"quiet": True}, "tools": [TOOL]},
    ],
    ids=str,
)
def test_an_answer_continues_these_tokens(templated: Served, fields: dict[str, Any]) -> None:
    ids = post(templated, "/tokenize", **fields)["tokens"]
    chat = post(templated, "/v1/chat/completions", temperature=0, max_tokens=8, **fields)
    assert chat["usage"]["prompt_tokens"] == len(ids)
    assert chat["choices"][0]["message"]["content"] == templated.text(ids, max_tokens=8)


@pytest.mark.parametrize(
    ("path", "fields", "param", "message"),
    [
        ("/tokenize", {}, None, "must have either prompt or messages"),
        ("/tokenize", {"prompt": "a", "messages": SAYS}, None, "must have either prompt or messages"),
        ("/tokenize", {"messages": SAYS, "add_special_tokens": True}, None, "add_special_tokens only with prompt"),
        ("/tokenize", {"prompt": "x " * 9000}, "prompt", "must have at most"),
        ("/tokenize", {"messages": []}, "messages", "must have at least 1 item"),
        ("/tokenize", {"prompt": "a", "model": "other"}, "model", f"must be '{NAME}'"),
        ("/detokenize", {"tokens": [-1]}, "tokens.0", "must be greater than or equal to 0"),
        ("/detokenize", {"tokens": [1 << 20]}, "tokens", "must be token ids from 0 to"),
        ("/detokenize", {"tokens": [1], "model": "other"}, "model", f"must be '{NAME}'"),
        (
            "/v1/chat/completions",
            {"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": True},
            None,
            "must have either continue_final_message or add_generation_prompt",
        ),
        (
            "/v1/chat/completions",
            {"messages": SAYS, "chat_template_kwargs": {"tokenize": True}},
            "chat_template_kwargs",
            "must have variables of the chat template, got 'tokenize'",
        ),
    ],
    ids=str,
)
def test_a_wrong_field_is_named(served: Served, path: str, fields: Any, param: str | None, message: str) -> None:
    answer = served.client.post(path, json=fields)
    assert answer.status_code in (400, 404), answer.text
    error = answer.json()["error"]
    assert (error["param"], message in error["message"]) == (param, True), error
