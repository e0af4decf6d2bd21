"""A server on a small model that ships, in this process: its client, and what plain decoding writes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from fastapi.testclient import TestClient
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import lade
import lade.models
from lade.applications.serve.app import create_app
from lade.applications.serve.build import build_service
from lade.applications.serve.service import Service
from lade.applications.serve.settings import ServeSettings
from lade.core.tally import Tally

NAME = "lade-code-8M-draft"
PROMPT = 'def add(a, b):\n    """Return the sum of é and ü."""\n'
CONFIG = lade.LookaheadConfig(mode="auto", budget=16, adapt=False)
Result = TypeVar("Result")


@dataclass
class Served:
    """A running server.

    Attributes:
        app: for ASGI.
        processor: the server's, of a model that reads images.
    """

    app: Any
    client: TestClient
    service: Service
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    processor: Any = None

    def run(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Run something in the server's event loop."""
        assert self.client.portal is not None
        found: Result = self.client.portal.call(work)
        return found

    def complete(self, prompt: Any = PROMPT, **fields: Any) -> dict[str, Any]:
        """The whole answer of /v1/completions, greedy unless asked otherwise."""
        answer = self.client.post("/v1/completions", json={"prompt": prompt, "temperature": 0} | fields)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def text(self, prompt: Any = PROMPT, **fields: Any) -> str:
        return str(self.complete(prompt, **fields)["choices"][0]["text"])

    def plain(self, prompt: str | Sequence[int] = PROMPT, seed: int = 0, **arguments: Any) -> list[int]:
        """The new tokens of plain decoding."""
        ids = torch.tensor([self.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else list(prompt)])
        torch.manual_seed(seed)
        settings = {"do_sample": False, "max_new_tokens": 24} | arguments
        found: list[int] = self.model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0].tolist()
        return found[ids.shape[1] :]

    def decode(self, prompt: str | Sequence[int], tokens: Sequence[int]) -> str:
        """The text of new tokens behind a prompt."""
        before = self.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else list(prompt)
        head, whole = (self.tokenizer.decode(ids, skip_special_tokens=True) for ids in (before, [*before, *tokens]))
        return str(whole)[len(str(head)) :]

    def noted_tallies(self) -> list[tuple[int, Tally]]:
        """A list that gets the tokens and the draft counts of each text that ends."""
        found: list[tuple[int, Tally]] = []
        ended = self.service.metrics.ended

        def noted(request: lade.Request) -> None:
            found.append((request.emitted, request.tally))
            ended(request)

        self.service.metrics.ended = noted  # type: ignore[method-assign]
        return found

    def settled(self) -> None:
        """Wait until nothing decodes, and check that no slot is open."""

        async def idle() -> None:
            while self.service.texts:
                await asyncio.sleep(0.001)

        self.run(idle)
        assert self.service.engine._target.cache.lengths == {}


def events(text: str) -> list[Any]:
    """The data of server-sent events; keep-alive comments are left out."""
    parts = [part for part in text.split("\n\n") if part and not part.startswith(":")]
    assert all(part.startswith("data: ") for part in parts)
    assert text.endswith("\n\n")
    return [part if part == "[DONE]" else json.loads(part) for part in (part.removeprefix("data: ") for part in parts)]


@contextmanager
def serving(
    pair: tuple[PreTrainedModel, PreTrainedTokenizerBase],
    kv_bytes: int | None = None,
    config: lade.LookaheadConfig = CONFIG,
    processor: Any = None,
    **settings: Any,
) -> Iterator[Served]:
    """A server with these settings, until the block ends."""
    model, tokenizer = pair
    asked = ServeSettings(**({"model": NAME, "slots": 4, "stream_interval": 0.0, "status_seconds": 0.0} | settings))
    service = build_service(asked, model, tokenizer, config=config, kv_bytes=kv_bytes, processor=processor)
    app = create_app(service)
    with TestClient(app, base_url="http://localhost") as client:
        yield Served(app, client, service, model, tokenizer, processor)


@dataclass
class Exchange:
    """One request to an ASGI application, whose client may read slowly or go away.

    Attributes:
        status: of the answer; 0 before it.
        parts: of its body.
    """

    app: Any
    path: str
    body: bytes
    method: str = "POST"
    headers: Sequence[tuple[str, str]] = (("host", "localhost"), ("content-type", "application/json"))
    status: int = 0
    parts: list[bytes] = field(default_factory=list)
    more_body: bool = False
    on_part: Callable[[], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        self._left, self._asked = asyncio.Event(), False

    def leave(self) -> None:
        self._left.set()

    async def run(self) -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in self.headers],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        await self.app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self.body, "more_body": self.more_body}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            self.parts.append(message.get("body", b""))
            if self.on_part is not None:
                await self.on_part()
