"""Requests to a server, drawn at random, and what plain decoding alone makes of each.

The oracle reads the fields of a request by itself: it shares no code with the server but the tokenizer, the model and
the masks of schemas.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import torch
from PIL import Image
from seeing import data_url, picture
from served import Exchange, Served, events
from transformers import LogitsProcessor, LogitsProcessorList

PROMPTS = (
    "def add(a, b):\n",
    'def area(r):\n    """Give the area of a circle.',
    "Question: How many apples are there?\nAnswer:",
    "naïve — 😀 text",
    "x = [1, 2, 3]\nfor i in x:\n    print(i)\n" * 4,
)
PICTURES = 3  # different ones
STOPS = ("\n", "return", "é", "  ", " a", "):\n    ")


SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}, "required": ["name"]},
    {"type": "array", "items": {"enum": ["red", "green", 3]}, "maxItems": 4},
    {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"const": "é√"}}, "required": ["a", "b"]},
)


class OpenAIPenalties(LogitsProcessor):
    """The formula of OpenAI's documentation, over the answer's tokens, one by one."""

    def __init__(self, prompt: int, frequency: float, presence: float) -> None:
        self.prompt, self.frequency, self.presence = prompt, frequency, presence

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        for token, count in Counter(input_ids[0, self.prompt :].tolist()).items():
            scores[0, token] = scores[0, token] - count * self.frequency - float(count > 0) * self.presence
        return scores


@dataclass
class Asked:
    """One request.

    Attributes:
        fields: of /v1/completions, or of a chat where there are messages.
        wait: turns of the event loop before it is sent.
        leaves: parts of its stream after which its client goes away; `None`: never.
    """

    fields: dict[str, Any]
    wait: int
    leaves: int | None

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if "messages" in self.fields else "/v1/completions"

    @property
    def exchange_fields(self) -> dict[str, Any]:
        return self.fields | ({"stream": True} if self.leaves is not None else {})


def drawn(draws: random.Random, tokens: int = 24, words: int = 500, earlier: Sequence[Asked] | None = None) -> Asked:
    """A request; some of its fields are left out.

    Args:
        words: the vocabulary's size.
        earlier: requests before it, for a model that reads images; `None` for one that does not.
    """
    schemas = SCHEMAS if earlier is None else SCHEMAS[:2]  # those that have all their letters in its vocabulary
    optional: dict[str, Any] = {
        "temperature": draws.choice([0, 0.5, 1, 1.3]),
        "top_p": draws.choice([0.6, 0.95, 1]),
        "top_k": draws.choice([-1, 0, 3, 40]),
        "min_p": draws.choice([0, 0.05, 0.3]),
        "stop": draws.choice([draws.choice(STOPS), draws.sample(STOPS, 2), []]),
        "frequency_penalty": draws.choice([-0.5, 0.4, 2]),
        "presence_penalty": draws.choice([-1, 0.7]),
        "repetition_penalty": draws.choice([0.9, 1.3]),
        "logit_bias": {str(draws.randrange(5, words)): draws.choice([-100, -3, 5, 12]) for _ in range(3)},
        "logprobs": draws.randrange(3),
        "lade": {"speculation": draws.random() < 0.7},
        "stream": draws.random() < 0.5,
        "n": draws.choice([1, 2]),
    }
    kept = {name: value for name, value in optional.items() if draws.random() < 0.4}
    if draws.random() < 0.5:
        kept["temperature"] = 0
    if draws.random() < 0.2:
        kept["response_format"] = {"type": "json_schema", "json_schema": {"name": "a", "schema": draws.choice(schemas)}}
    own = {"prompt": draws.choice(PROMPTS), "seed": draws.randrange(1000), "max_tokens": draws.randint(1, tokens)}
    if draws.random() < 0.3:
        own |= _chat(draws, own.pop("prompt"))
        kept.pop("logprobs", None)
    elif earlier is not None and draws.random() < 0.8:
        own |= {"messages": _about_images(draws, own.pop("prompt"), earlier)}
        kept.pop("logprobs", None)
    leaves = draws.randrange(1, 4) if draws.random() < 0.15 else None
    return Asked(kept | own, draws.choice([0, 0, 1, 5, 20]), leaves)


def _chat(draws: random.Random, text: str) -> dict[str, Any]:
    """The fields of a chat instead of a prompt; some have a prediction, right or wrong."""
    system = [{"role": "system", "content": "Be short."}] if draws.random() < 0.5 else []
    predicted = draws.choice([None, None, text, "    return a + b\n" * 3, "é" * 9])
    found: dict[str, Any] = {"messages": [*system, {"role": "user", "content": text}]}
    return found if predicted is None else found | {"prediction": {"type": "content", "content": predicted}}


def _about_images(draws: random.Random, text: str, earlier: Sequence[Asked]) -> list[Any]:
    """Messages with 0 to 3 images; half of them go on with those of an earlier request."""
    chats = [each.fields["messages"] for each in earlier if "messages" in each.fields]
    before = draws.choice(chats) if chats and draws.random() < 0.5 else []
    answer = [{"role": "assistant", "content": draws.choice(("Yes.", "It is red, and long. " * 4))}] if before else []
    most = 3 - sum(each["type"] == "image_url" for each in _parts(before))
    content: list[Any] = [{"type": "text", "text": text}]
    for _ in range(draws.randint(0, most)):
        image = {"type": "image_url", "image_url": {"url": data_url(picture(draws.randrange(PICTURES)))}}
        content.insert(draws.randint(0, len(content)), image)
    return [*before, *answer, {"role": "user", "content": content}]


def _parts(messages: Sequence[Any]) -> list[dict[str, Any]]:
    return [part for each in messages if isinstance(each["content"], list) for part in each["content"]]


def prompt_of(served: Served, fields: dict[str, Any]) -> tuple[list[int], dict[str, torch.Tensor]]:
    """The prompt's token ids, and what the model gets beside them; a model without a chat template gets lines that
    begin with a role."""
    tokenizer = served.tokenizer
    if "prompt" in fields:
        return list(tokenizer(fields["prompt"])["input_ids"]), {}
    if tokenizer.chat_template:
        return _processed(served, fields["messages"])
    lines = "".join(f"{each['role'].capitalize()}: {each['content']}\n" for each in fields["messages"])
    return list(tokenizer(f"{tokenizer.bos_token}{lines}Assistant:", add_special_tokens=False)["input_ids"]), {}


def _processed(served: Served, messages: Sequence[Any]) -> tuple[list[int], dict[str, torch.Tensor]]:
    """What transformers' processor makes of a conversation."""
    told = [{"role": each["role"], "content": [_told(part) for part in _parts([_in_parts(each)])]} for each in messages]
    how = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}
    found = dict(served.processor.apply_chat_template(told, **how))
    del found["attention_mask"]
    return found.pop("input_ids")[0].tolist(), found


def _in_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    return message if isinstance(content, list) else message | {"content": [{"type": "text", "text": content}]}


def _told(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return part
    file = base64.b64decode(part["image_url"]["url"].partition(",")[2])
    return {"type": "image", "image": Image.open(BytesIO(file))}


def expected(served: Served, fields: dict[str, Any]) -> list[tuple[str, str]]:
    """The text and the reason of its end, for each choice, by plain decoding alone."""
    return [_alone(served, fields, choice) for choice in range(fields.get("n", 1))]


def _alone(served: Served, fields: dict[str, Any], choice: int) -> tuple[str, str]:
    prompt, inputs = prompt_of(served, fields)
    plain = served.plain(prompt, seed=fields["seed"] + choice, **inputs, **arguments(served, fields, len(prompt)))
    ended = plain[-1] == served.model.generation_config.eos_token_id
    text = served.decode(prompt, plain[:-1] if ended else plain)
    stops = [fields["stop"]] if isinstance(fields.get("stop"), str) else fields.get("stop", [])
    stops = [*stops, "\nUser:"] if "messages" in fields and not served.tokenizer.chat_template else stops
    places = [text.index(stop) for stop in stops if stop in text]
    if places:
        return text[: min(places)], "stop"
    return text, "stop" if ended else "length"


def arguments(served: Served, fields: dict[str, Any], prompt: int) -> dict[str, Any]:
    """The arguments of `model.generate` for a prompt of this length; stop strings are searched in its whole text."""
    found: dict[str, Any] = {"max_new_tokens": fields["max_tokens"]}
    temperature = fields.get("temperature", 1)
    if temperature:
        sampling = {name: fields[name] for name in ("top_p", "min_p") if name in fields}
        found |= {
            "do_sample": True,
            "temperature": float(temperature),
            "top_k": max(0, fields.get("top_k", 0)),
        } | sampling
    if "repetition_penalty" in fields:
        found["repetition_penalty"] = fields["repetition_penalty"]
    if "logit_bias" in fields:
        found["sequence_bias"] = {(int(token),): float(bias) for token, bias in fields["logit_bias"].items()}
    frequency, presence = fields.get("frequency_penalty", 0), fields.get("presence_penalty", 0)
    found["logits_processor"] = LogitsProcessorList([OpenAIPenalties(prompt, frequency, presence)])
    if "response_format" in fields:
        schema = fields["response_format"]["json_schema"]["schema"]
        found["logits_processor"].append(served.service.planner.grammars.mask(schema, prompt, "schema"))
    return found


async def crowd(served: Served, asked: list[Asked]) -> list[list[tuple[str, str | None]]]:
    """Let them all arrive, each after its wait; returns texts and reasons of each one's choices."""

    async def one(each: Asked) -> list[tuple[str, str | None]]:
        for _ in range(each.wait):
            await asyncio.sleep(0)
        return await sent(served, each)

    return list(await asyncio.gather(*(one(each) for each in asked)))


async def sent(served: Served, asked: Asked) -> list[tuple[str, str | None]]:
    fields = asked.exchange_fields
    exchange = Exchange(served.app, asked.path, json.dumps(fields).encode())

    async def count() -> None:
        if asked.leaves is not None and len(exchange.parts) >= asked.leaves:
            exchange.leave()

    exchange.on_part = count
    await exchange.run()
    assert exchange.status == 200, exchange.parts
    body = b"".join(exchange.parts).decode()
    if not fields.get("stream"):
        return [(text_of(choice), choice["finish_reason"]) for choice in json.loads(body)["choices"]]
    texts: list[str] = [""] * fields.get("n", 1)
    ends: list[str | None] = [None] * len(texts)
    for event in events(body):
        assert asked.leaves is not None or "error" not in event, event
        for choice in [] if event == "[DONE]" else event["choices"]:
            texts[choice["index"]] += text_of(choice)
            ends[choice["index"]] = choice["finish_reason"] or ends[choice["index"]]
    return list(zip(texts, ends, strict=True))


def text_of(choice: dict[str, Any]) -> str:
    """Of an answer's choice, or of a chunk's, in a completion or a chat."""
    told = choice.get("message", choice.get("delta", choice))
    return str(told.get("content", told.get("text", "")))


def differences(asked: Asked, found: list[tuple[str, str | None]], plain: list[tuple[str, str]]) -> list[str]:
    """What is not as plain decoding has it; a client that left has the beginning of the text."""
    lines = []
    for index, ((text, end), (right, reason)) in enumerate(zip(found, plain, strict=True)):
        same = (text, end) == (right, reason) if asked.leaves is None or end else right.startswith(text)
        if not same:
            lines.append(f"choice {index} of {asked.fields}: {text!r} ({end}), plain decoding has {right!r} ({reason})")
    return lines
