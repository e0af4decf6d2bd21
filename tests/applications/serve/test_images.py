"""Messages with images: what the engine is handed for them is what transformers' processor makes of the conversation,
in all formats; and what is refused."""

import json
from typing import Any

import anthropic
import httpx2
import hypothesis
import openai
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from PIL import Image
from seeing import IMAGE_ID, IMAGE_TOKENS, NAME, data_url, encoded, gemma3, picture, random_model
from served import Served, events, serving

from lade.applications.images.prompt import Prompt
from lade.applications.serve import image_prompts
from lade.applications.serve.image_prompts import ImagePrompts
from lade.applications.serve.prompts import Prompts
from lade.models.processor import load_processor

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
RED, BLUE = picture(1), picture(2, (9, 31))
Json = dict[str, Any]


def part(image: Image.Image = RED, **others: Any) -> Json:
    return {"type": "image_url", "image_url": {"url": data_url(image)} | others}


def block(image: Image.Image = RED, **others: Any) -> Json:
    source = {"type": "base64", "media_type": "image/png", "data": encoded(image)}
    return {"type": "image", "source": source} | others


def said(text: str, kind: str = "text") -> Json:
    return {"type": kind, "text": text}


def user(*content: Json) -> Json:
    return {"role": "user", "content": list(content)}


SHOWN = user(said("What is "), part(detail="high"), said("this?"))
# The same conversation in each format.
ASKED: dict[str, Json] = {
    CHAT: {"messages": [{"role": "system", "content": "Be short."}, SHOWN], "max_tokens": 6, "temperature": 0},
    RESPONSES: {
        "instructions": "Be short.",
        "input": [
            user(
                said("What is ", "input_text"),
                {"type": "input_image", "image_url": data_url(RED), "detail": "auto", "file_id": None},
                said("this?", "input_text"),
            )
        ],
        "max_output_tokens": 6,
        "temperature": 0,
    },
    MESSAGES: {
        "system": "Be short.",
        "messages": [user(said("What is "), block(cache_control={"type": "ephemeral"}), said("this?"))],
        "max_tokens": 6,
        "temperature": 0,
    },
}
TOLD = [
    {"role": "system", "content": [said("Be short.")]},
    user(said("What is "), {"type": "image", "image": RED}, said("this?")),
]


@pytest.fixture
def handed(seeing: Served, monkeypatch: pytest.MonkeyPatch) -> list[Json]:
    """The arguments of all texts that the engine gets."""
    found: list[Json] = []
    submit = seeing.service.engine.submit

    def noted(**arguments: Any) -> Any:
        found.append(arguments)
        return submit(**arguments)

    monkeypatch.setattr(seeing.service.engine, "submit", noted)
    return found


@pytest.fixture(scope="session")
def processor(llava: Any) -> Any:
    return load_processor(llava)


@pytest.fixture
def own(seeing: Served) -> Any:
    """The server's processor."""
    images = seeing.service.planner.prompts.images
    assert images is not None
    return images._processor


def inputs(processor: Any, conversation: list[Json]) -> dict[str, torch.Tensor]:
    """The inputs as transformers makes them."""
    how = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}
    return dict(processor.apply_chat_template(conversation, **how))


def post(served: Served, path: str = CHAT, **fields: Any) -> Any:
    answer = served.client.post(path, json=ASKED[path] | fields)
    assert answer.status_code == 200, answer.text
    return answer


def refused(served: Served, path: str = CHAT, **fields: Any) -> Json:
    answer = served.client.post(path, json=ASKED[path] | fields)
    assert answer.status_code == 400, answer.text
    return dict(answer.json()["error"])


def assert_handed(arguments: Json, expected: dict[str, torch.Tensor]) -> None:
    assert arguments["pixel_values"].shape[0] == expected["pixel_values"].shape[0]
    for name, value in expected.items():
        assert torch.equal(arguments[name], value), name


def text_of(path: str, body: Json) -> str:
    if path == CHAT:
        return str(body["choices"][0]["message"]["content"])
    (said,) = body["content"] if path == MESSAGES else body["output"][0]["content"]
    return str(said["text"])


@pytest.mark.parametrize("path", ASKED)
def test_the_engine_gets_what_the_processor_makes(
    path: str, seeing: Served, processor: Any, handed: list[Json]
) -> None:
    body = post(seeing, path).json()
    expected = inputs(processor, TOLD)
    (arguments,) = handed
    assert_handed(arguments, expected)
    assert (expected["input_ids"] == IMAGE_ID).sum() == IMAGE_TOKENS
    usage = body["usage"]
    given = usage.get("prompt_tokens", usage.get("input_tokens", 0)) + usage.get("cache_read_input_tokens", 0)
    assert given == expected["input_ids"].shape[1]


@pytest.mark.parametrize("path", ASKED)
def test_the_text_is_that_of_generate(path: str, seeing: Served, processor: Any) -> None:
    expected = inputs(processor, TOLD)
    length = expected["input_ids"].shape[1]
    tokens = seeing.model.generate(**expected, max_new_tokens=6, do_sample=False)[0, length:].tolist()
    assert text_of(path, post(seeing, path).json()) == seeing.decode(expected["input_ids"][0].tolist(), tokens)


def test_another_image_is_another_text(seeing: Served) -> None:
    """The image is read, not its place alone."""
    texts = {
        post(seeing, messages=[user(part(picture(seed)))], max_tokens=12).json()["choices"][0]["message"]["content"]
        for seed in range(4)
    }
    assert len(texts) > 1


def test_several_images(seeing: Served, processor: Any, handed: list[Json]) -> None:
    """In the order of their places, also where calls and their results stand between."""
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        user(part(RED), part(BLUE), said("Which?")),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": [said("A picture: "), part(RED)]},
        user(said("And "), said("this: "), part(BLUE)),
    ]
    post(seeing, messages=messages)
    red, blue = ({"type": "image", "image": image} for image in (RED, BLUE))
    written = json.dumps({"name": "look", "arguments": {}})
    told = [
        user(red, blue, said("Which?")),
        {"role": "assistant", "content": [said(written)]},
        {"role": "tool", "content": [said("A picture: "), red]},
        user(said("And this: "), blue),
    ]
    assert_handed(handed[0], inputs(processor, told))
    assert handed[0]["pixel_values"].shape == (4, 3, 16, 16)


def test_images_of_results(seeing: Served, handed: list[Json]) -> None:
    use = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    seen = result(said("Seen: "), block(BLUE))
    turns = [{"role": "user", "content": "Look."}, {"role": "assistant", "content": [use]}, user(seen, said("So?"))]
    post(seeing, MESSAGES, messages=turns)
    call = {"type": "function_call", "call_id": "t", "name": "look", "arguments": "{}"}
    output = [said("Seen: ", "input_text"), {"type": "input_image", "image_url": data_url(BLUE)}]
    items = [turns[0], call, {"type": "function_call_output", "call_id": "t", "output": output}, user(said("So?"))]
    post(seeing, RESPONSES, input=items)
    first, second = handed
    assert torch.equal(first["input_ids"], second["input_ids"])
    assert torch.equal(first["pixel_values"], second["pixel_values"])
    assert (first["input_ids"] == IMAGE_ID).sum() == IMAGE_TOKENS


def test_without_images_nothing_is_as_with_them(seeing: Served, handed: list[Json]) -> None:
    post(seeing, messages=[{"role": "user", "content": "What is <image>?"}])
    post(seeing, messages=[user(said("What is "), said("<image>?"))])
    for arguments in handed:
        text = "<s>user: What is <image>?\nassistant: "
        assert arguments["input_ids"].tolist() == [seeing.tokenizer(text)["input_ids"]]
        assert "pixel_values" not in arguments


def test_streams_tell_the_whole_text(seeing: Served) -> None:
    whole = post(seeing, n=2, seed=3, temperature=1.0).json()
    told = ["", ""]
    chunks = events(post(seeing, n=2, seed=3, temperature=1.0, stream=True).text)
    for choice in [choice for chunk in chunks[:-1] for choice in chunk["choices"]]:
        told[choice["index"]] += choice["delta"].get("content") or ""
    assert told == [choice["message"]["content"] for choice in whole["choices"]]
    assert "message_stop" in post(seeing, MESSAGES, stream=True).text
    assert "response.incomplete" in post(seeing, RESPONSES, stream=True).text


def test_schemas_functions_stops_and_log_probabilities(seeing: Served, handed: list[Json]) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x", "y"]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    answer = post(seeing, response_format=wanted, max_tokens=40, logprobs=True).json()["choices"][0]
    assert json.loads(answer["message"]["content"])["a"] in ("x", "y")
    assert answer["logprobs"]["content"]
    tools = [{"type": "function", "function": {"name": "look", "parameters": schema}}]
    (call,) = post(seeing, tools=tools, tool_choice="required", max_tokens=80).json()["choices"][0]["message"][
        "tool_calls"
    ]
    assert json.loads(call["function"]["arguments"])["a"] in ("x", "y")
    text = post(seeing).json()["choices"][0]["message"]["content"]
    assert post(seeing, stop=text[2]).json()["choices"][0]["message"]["content"] == text[: text.index(text[2])]
    assert all("pixel_values" in arguments for arguments in handed)


def test_tokens_are_counted(seeing: Served, processor: Any) -> None:
    ids = inputs(processor, TOLD)["input_ids"][0].tolist()
    told = seeing.client.post("/tokenize", json={"messages": ASKED[CHAT]["messages"]}).json()
    assert told["tokens"] == ids
    fields = {name: ASKED[MESSAGES][name] for name in ("system", "messages")}
    assert seeing.client.post("/v1/messages/count_tokens", json=fields).json() == {"input_tokens": len(ids)}


def test_threads_that_read_images_keep_none_of_openmp(seeing: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[None] = []
    monkeypatch.setattr(image_prompts, "release_threads", lambda: released.append(None))
    for data in (data_url(RED), "data:image/png;base64,aaaa"):
        seeing.client.post("/tokenize", json={"messages": [user(url(data))]})
    assert len(released) == 2


def test_a_large_image_fits(seeing: Served) -> None:
    noise = picture(5, (1300, 1200))  # its file has 4.7 MB
    answer = seeing.client.post("/tokenize", json={"messages": [user(part(noise))]})
    assert answer.status_code == 200, answer.text
    assert answer.json()["tokens"].count(IMAGE_ID) == IMAGE_TOKENS


URL = "must be a data URL of a PNG, JPEG, WebP or GIF image in base64, since the server fetches nothing, got"
BROKEN = "must be a whole PNG, JPEG, WebP or GIF image, got another file"


def url(value: str) -> Json:
    return {"type": "image_url", "image_url": {"url": value}}


def given(value: Any = None) -> Json:
    """A part of /v1/responses."""
    return {"type": "input_image", "image_url": data_url(RED) if value is None else value}


def source(**changes: str) -> Json:
    """A block of /v1/messages."""
    return block() | {"source": block()["source"] | changes}


def result(*content: Json) -> Json:
    return {"type": "tool_result", "tool_use_id": "t", "content": list(content)}


def says(role: str, *content: Json) -> Json:
    return {"role": role, "content": list(content)}


IN_CHAT, IN_RESPONSES, IN_MESSAGES = (
    "messages.0.content.0.image_url.url",
    "input.0.content.0.image_url",
    "messages.0.content.1.source",
)
USERS = "images only where role is 'user'"
FETCHES = "must be 'base64', since the server fetches nothing"
WRONG: list[tuple[str, list[Json], str, str]] = [
    *(
        (CHAT, [user(url(f"{where}/a.png"))], IN_CHAT, URL)
        for where in ("https://x.test", "http://[::1]", "file:///etc")
    ),
    *((CHAT, [user(url(f"data:{what},aa"))], IN_CHAT, URL) for what in ("image/png", "image/svg+xml;base64", "")),
    (CHAT, [user(url("data:image/png;base64,a"))], IN_CHAT, "must be an image in base64, got 'a'"),
    (CHAT, [user(part(), url("data:image/png;base64,aaaa"))], "messages.0.content.1.image_url.url", BROKEN),
    (CHAT, [user(*[part()] * 33)], "messages", "must have at most 32 images, got 33"),
    (CHAT, [user({"type": "image_url"})], "messages.0.content.0.image_url", "must be given"),
    (CHAT, [user(given())], "messages.0.content.0", "must have the type 'text' or"),
    (CHAT, [says("system", part())], "messages.0", USERS),
    (CHAT, [says("assistant", part())], "messages.0", USERS),
    (RESPONSES, [user(given("https://x.test/a.png"))], IN_RESPONSES, URL),
    (RESPONSES, [user(given("data:image/png;base64,aaaa"))], IN_RESPONSES, BROKEN),
    (RESPONSES, [user(given(3))], IN_RESPONSES, "must be"),
    (RESPONSES, [user(given() | {"file_id": "f"})], "input.0.content.0.file_id", "must be left out"),
    (RESPONSES, [user(part())], "input.0.content.0", "must have the type 'text' or"),
    (RESPONSES, [says("system", given())], "input.0", USERS),
    (RESPONSES, [user(*[given()] * 33)], "input", "input must have at most 32 images, got 33"),
    (MESSAGES, [user(said("a"), source(type="url"))], f"{IN_MESSAGES}.type", FETCHES),
    (MESSAGES, [user(said("a"), source(media_type="image/bmp"))], f"{IN_MESSAGES}.media_type", "must be 'image/png'"),
    (MESSAGES, [user(said("a"), source(data="aaaa"))], f"{IN_MESSAGES}.data", BROKEN),
    (MESSAGES, [says("assistant", block())], "messages.0", "'image' only where role is 'user'"),
    (MESSAGES, [user(result(source(data="aaaa")))], "messages.0.content.0.content.0.source.data", BROKEN),
]


@pytest.mark.parametrize(("path", "messages", "param", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_image_is_named(seeing: Served, path: str, messages: list[Json], param: str, message: str) -> None:
    error = refused(seeing, path, **{"input" if path == RESPONSES else "messages": messages})
    assert error["param"] == param
    assert message in error["message"]
    assert param in error["message"]
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) < 500


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        (CHAT, "prediction", {"type": "content", "content": [part()]}),
        (MESSAGES, "system", [block()]),
        (RESPONSES, "instructions", [given()]),
    ],
)
def test_other_fields_are_text(seeing: Served, path: str, field: str, value: Any) -> None:
    error = refused(seeing, path, **{field: value})
    assert str(error["param"]).startswith(field)
    assert "must be" in error["message"]


def test_errors_of_tokens_name_the_same_fields(seeing: Served) -> None:
    fields = {"messages": [user(said("a"), source(data="aaaa"))], "system": "Be short."}
    answer = seeing.client.post("/v1/messages/count_tokens", json=fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages.0.content.1.source.data"


@pytest.mark.parametrize(("path", "param"), [(CHAT, "messages"), (RESPONSES, "input"), (MESSAGES, "messages")])
def test_a_model_of_text_alone(path: str, param: str, served: Served) -> None:
    error = refused(served, path)
    assert error["param"] == param
    assert error["message"] == (
        f"{param} must be text only, since the server reads no images for this model, got 1 of them"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"messages": [user(part(), said("and <image>"))]},
        {"messages": [user(part(), said("and <ima"), said("ge>"))]},
        {"messages": [user(part()), {"role": "assistant", "content": "<image>"}, user(said("?"))]},
        {"tools": [{"type": "function", "function": {"name": "look", "description": "<image>"}}]},
    ],
    ids=["text", "two parts", "another message", "tools"],
)
def test_no_text_stands_for_an_image(seeing: Served, handed: list[Json], change: Json) -> None:
    error = refused(seeing, **change)
    assert error["param"] == "messages"
    assert "messages must be without '<image>' in their texts" in error["message"]
    assert not handed


def test_a_model_that_reads_more_than_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer, processor = gemma3()
    expected = inputs(processor, TOLD)
    length = expected["input_ids"].shape[1]
    tokens = model.generate(**expected, max_new_tokens=6, do_sample=False)[0, length:].tolist()
    with serving((model, tokenizer), processor=processor, model="gemma3") as served:
        found: list[Json] = []
        submit = served.service.engine.submit
        monkeypatch.setattr(served.service.engine, "submit", lambda **given: found.append(given) or submit(**given))
        text = post(served).json()["choices"][0]["message"]["content"]
        assert_handed(found[0], expected)
        assert found[0]["token_type_ids"].sum() == IMAGE_TOKENS
        for token in ("<begin>", "<soft>"):
            error = refused(served, messages=[user(part(), said(token))])
            assert f"without {token!r} in their texts" in error["message"]
        assert text == served.decode(expected["input_ids"][0].tolist(), tokens)


def test_what_the_processor_raises(seeing: Served, processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any, **arguments: Any) -> None:
        raise KeyError("one\ntwo" + "x" * 999)

    monkeypatch.setattr(type(processor), "__call__", fails)
    error = refused(seeing)
    assert error["message"].startswith("messages must be ones that the model's processor takes (")
    assert error["message"].endswith("), got 1 images")
    assert "\n" not in error["message"]
    assert len(error["message"]) < 400


def test_what_the_template_refuses(seeing: Served, own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "chat_template", "{{ raise_exception('no') }}")
    assert "ones that the model's chat template takes (no), got 'system, user'" in refused(seeing)["message"]


def test_the_tokenizer_s_template_is_the_second_choice(
    seeing: Served, own: Any, handed: list[Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    post(seeing)
    monkeypatch.setattr(own, "chat_template", None)
    post(seeing)
    assert torch.equal(handed[0]["input_ids"], handed[1]["input_ids"])
    monkeypatch.setattr(own.tokenizer, "chat_template", None)
    assert "messages must be text only, since the model has no chat template" in refused(seeing)["message"]


def test_templates_that_read_parts_alone(
    seeing: Served, own: Any, handed: list[Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    part = "{{ '<image>' if part['type'] == 'image' else part['text'] }}"
    template = (
        f"{{% for message in messages %}}{{% for part in message['content'] %}}{part}{{% endfor %}}|{{% endfor %}}"
    )
    monkeypatch.setattr(own, "chat_template", template)
    post(seeing)
    ids = [each for each in handed[0]["input_ids"][0].tolist() if each != IMAGE_ID]
    assert seeing.tokenizer.decode(ids) == "Be short.|What is this?|"


@pytest.mark.parametrize("owner", ["tokenizer", "processor"])
def test_texts_alone_by_such_a_template(owner: str, llava: Any) -> None:
    """Contents are told in parts where nothing of a string would be in the prompt, and only there."""
    own = load_processor(llava)
    model = random_model("llava", own.tokenizer, "<image>", image_token_index=IMAGE_ID)
    alone = (
        "{% for message in messages %}{% for part in message['content'] %}{{ part['text'] }}|{% endfor %}{% endfor %}"
    )
    string = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    for template, text in ((alone, "What is this?|"), (string, "What is this?")):
        own.chat_template, own.tokenizer.chat_template = template, template if owner == "tokenizer" else None
        prompts = Prompts(own.tokenizer, 1024, len(own.tokenizer), ImagePrompts(own, model))
        assert prompts.has_template
        assert prompts.text_of(prompts.of_messages([{"role": "user", "content": "What is this?"}])) == text


def test_a_template_that_leaves_out_images(seeing: Served, own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "chat_template", "no images")
    assert "ones that the model's processor takes" in refused(seeing)["message"]


def test_a_prompt_is_measured_with_its_images(seeing: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    length = seeing.client.post("/tokenize", json={"messages": ASKED[CHAT]["messages"]}).json()["count"]
    monkeypatch.setattr(seeing.service.planner.prompts, "positions", length)
    error = refused(seeing)
    assert error["code"] == "context_length_exceeded"
    assert f"got {length} tokens" in error["message"]
    monkeypatch.setattr(seeing.service.planner.prompts, "positions", length + 1)
    assert post(seeing).json()["usage"]["completion_tokens"] == 1


def test_the_official_packages(seeing: Served) -> None:
    own: Any = httpx2.AsyncClient(transport=httpx2.ASGITransport(seeing.app))
    texts = [text_of(path, post(seeing, path).json()) for path in ASKED]

    async def use() -> None:
        async with own:
            api = openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=own, max_retries=0)
            other = anthropic.AsyncAnthropic(
                base_url="http://localhost", api_key="none", http_client=own, max_retries=0
            )
            chat: Any = await api.chat.completions.create(model=NAME, **ASKED[CHAT])
            response: Any = await api.responses.create(model=NAME, **ASKED[RESPONSES])
            fields = {name: value for name, value in ASKED[MESSAGES].items() if name != "temperature"}
            message: Any = await other.messages.create(model=NAME, extra_body={"temperature": 0}, **fields)
            assert [chat.choices[0].message.content, response.output_text, message.content[0].text] == texts
            with pytest.raises(openai.BadRequestError, match="fetches nothing"):
                await api.chat.completions.create(model=NAME, messages=[user(url("http://x.test/a.png"))])  # type: ignore[list-item]

    seeing.run(use)


LEAVES = st.none() | st.booleans() | st.integers(-1, 1) | st.text(max_size=3) | st.just("data:image/png;base64,")
NAMES = st.sampled_from(["type", "url", "image_url", "source", "data", "media_type", "detail", "file_id", "text"])
KINDS = st.sampled_from(["image_url", "input_image", "image", "tool_result", "base64", "image/png", "text"])
FIELDS = st.recursive(
    LEAVES | KINDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
KIND_OF = {CHAT: part(), RESPONSES: given(), MESSAGES: block()}


@settings(max_examples=100)
@hypothesis.given(st.sampled_from(sorted(KIND_OF)), st.dictionaries(NAMES, FIELDS, max_size=3))
def test_any_part_is_answered(seeing: Served, path: str, change: Json) -> None:
    said_in = "input" if path == RESPONSES else "messages"
    answer = seeing.client.post(path, json=ASKED[path] | {said_in: [user(KIND_OF[path] | change)]})
    assert answer.status_code in (200, 400), answer.text
    assert answer.status_code == 200 or str(answer.json()["error"]["param"]).startswith(said_in)


def test_what_the_model_refuses_ends_that_request_alone(
    seeing: Served, own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = seeing.service.planner.prompts.images
    assert images is not None
    whole = images._prompt

    def with_one_image_less(found: Json) -> Prompt:
        return whole(found | {"pixel_values": found["pixel_values"][:-1]})

    text = post(seeing).json()["choices"][0]["message"]["content"]
    with monkeypatch.context() as less:
        less.setattr(images, "_prompt", with_one_image_less)
        fields = ASKED[CHAT] | {"messages": [user(part(RED), part(BLUE))]}
        answer = seeing.client.post(CHAT, json=fields)
        stream = seeing.client.post(CHAT, json=fields | {"stream": True})
    assert answer.status_code == 500
    for failed in (answer, stream):  # whose status may come before the error
        assert '"the server could not answer; its log says why"' in failed.text
    assert post(seeing).json()["choices"][0]["message"]["content"] == text


def test_nothing_is_left_of_them(seeing: Served) -> None:
    seeing.settled()
