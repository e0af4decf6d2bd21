"""The official `openai` package, unmodified, and a server on a real port."""

import json
import re
import threading
from pathlib import Path
from typing import Any, Literal

import httpx2
import openai
import pytest
from pydantic import BaseModel
from running import Gate, Running
from served import NAME, PROMPT, Served

MESSAGES: Any = [{"role": "user", "content": "Add two numbers"}]


def client(served: Served) -> openai.AsyncOpenAI:
    transport = httpx2.ASGITransport(served.app)
    own = httpx2.AsyncClient(transport=transport)
    return openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=own, max_retries=0)


def test_the_openai_package(served: Served) -> None:
    plain = served.text(max_tokens=5)

    async def use() -> None:
        async with client(served) as api:
            assert [model.id async for model in api.models.list()] == [NAME]
            settings: Any = {"model": NAME, "messages": MESSAGES, "max_completion_tokens": 12, "seed": 4, "n": 2}
            whole = await api.chat.completions.create(**settings, logprobs=True, top_logprobs=1)
            assert whole.usage is not None
            assert whole.usage.completion_tokens == 24
            assert whole.choices[0].logprobs is not None
            told = ["", ""]
            async for chunk in await api.chat.completions.create(
                **settings, stream=True, stream_options={"include_usage": True}
            ):
                for choice in chunk.choices:
                    told[choice.index] += choice.delta.content or ""
            assert told == [choice.message.content for choice in whole.choices]
            assert chunk.usage == whole.usage
            completion = await api.completions.create(
                model=NAME, prompt=PROMPT, max_tokens=5, temperature=0, extra_body={"top_k": 3, "lade": {}}
            )
            assert completion.choices[0].text == plain

    served.run(use)


class Colour(BaseModel):
    colour: Literal["red", "green"]


def test_schemas_and_functions_of_the_package(served: Served) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    tools: Any = [{"type": "function", "function": {"name": "act", "parameters": parameters}}]

    async def use() -> None:
        async with client(served) as api:
            parsed = await api.chat.completions.parse(model=NAME, messages=MESSAGES, response_format=Colour)
            assert parsed.choices[0].message.parsed is not None
            assert parsed.choices[0].message.parsed.colour in ("red", "green")
            settings: Any = {"model": NAME, "messages": MESSAGES, "tools": tools, "tool_choice": "required", "seed": 1}
            whole = await api.chat.completions.create(**settings)
            (call,) = whole.choices[0].message.tool_calls or []
            assert call.type == "function"
            assert type(json.loads(call.function.arguments)["a"]) is bool
            async with api.chat.completions.stream(**settings) as stream:
                kinds = [event.type async for event in stream]
            assert kinds.count("tool_calls.function.arguments.done") == 1
            async with api.chat.completions.stream(**settings) as stream:
                told = (await stream.get_final_completion()).choices[0]
            assert told.finish_reason == "tool_calls"
            assert told.message.tool_calls is not None
            assert told.message.tool_calls[0].function.arguments == call.function.arguments
            later = [*MESSAGES, whole.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "done"}]
            again = await api.chat.completions.create(model=NAME, messages=later, max_tokens=3)
            assert again.choices[0].message.content is not None

    served.run(use)


def test_errors_are_those_of_the_package(served: Served) -> None:
    async def use() -> None:
        async with client(served) as api:
            with pytest.raises(openai.BadRequestError, match="temperature must") as wrong:
                await api.chat.completions.create(model=NAME, messages=MESSAGES, temperature=3)
            assert wrong.value.param == "temperature"
            with pytest.raises(openai.NotFoundError) as missing:
                await api.chat.completions.create(model="gpt-9", messages=MESSAGES)
            assert missing.value.code == "model_not_found"

    served.run(use)


def test_the_client_of_the_documents(pair: Any, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "serve" / "README.md").read_text(encoding="utf-8")
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "import OpenAI\n" in block)
    with Running(pair) as running:
        exec(code.replace("http://localhost:8000", running.url).replace("smollm2-135m", NAME), {})
    assert capsys.readouterr().out.strip()


def read_while_it_ends(running: Running, tokens: int) -> list[Any]:
    """The events of a stream, during which the server is told to end."""
    fields = {"prompt": PROMPT, "max_tokens": tokens, "stream": True, "logit_bias": {"0": -100}}
    found: list[Any] = []
    with httpx2.stream("POST", f"{running.url}/v1/completions", json=fields, timeout=60) as answer:
        for line in answer.iter_lines():
            running.server.should_exit = True
            if line.startswith("data: ") and line != "data: [DONE]":
                found.append(json.loads(line.removeprefix("data: ")))
    return found


def test_a_running_text_finishes_before_the_server_ends(pair: Any) -> None:
    with Running(pair, grace=60) as running:
        assert httpx2.get(f"{running.url}/health").json() == {"status": "ok"}
        found = read_while_it_ends(running, 100)
    assert found[-1]["choices"][0]["finish_reason"] == "length"


def test_a_text_that_takes_too_long_is_cut_off(pair: Any) -> None:
    with Running(pair, grace=0) as running:
        found = read_while_it_ends(running, 1900)
    assert "shuts down" in found[-1]["error"]["message"]


def test_a_disconnect_on_a_real_port(pair: Any) -> None:
    with Running(pair, grace=60) as running:
        fields = {"prompt": PROMPT, "max_tokens": 1900, "stream": True, "logit_bias": {"0": -100}}
        with httpx2.stream("POST", f"{running.url}/v1/completions", json=fields) as answer:
            next(answer.iter_lines())
        while running.server.service.texts:
            threading.Event().wait(0.005)
        page = httpx2.get(f"{running.url}/metrics").text
    (new,) = (float(line.split()[1]) for line in page.splitlines() if line.startswith("lade_generated_tokens_total"))
    assert new < 1900


def test_a_connection_beyond_the_bound_on_a_real_port(pair: Any) -> None:
    fields = {"prompt": PROMPT, "max_tokens": 9, "stream": True}
    with Running(pair, connections=1) as running:
        gate = Gate(running.server.service.engine)
        with httpx2.stream("POST", f"{running.url}/v1/completions", json=fields) as answer:
            refused = httpx2.get(f"{running.url}/v1/models")
            health = httpx2.get(f"{running.url}/health")
            gate.open()
            answer.read()
    assert refused.status_code == 503
    assert "connections" in refused.json()["error"]["message"]
    assert refused.headers["connection"] == "close"
    assert health.json() == {"status": "ok"}
