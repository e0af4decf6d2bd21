"""vLLM's /tokenize and /detokenize: the tokens of a text or of a conversation, and the text of tokens."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import ConfigDict, Field, model_validator

from lade.applications.serve import described
from lade.applications.serve.described import ERRORS
from lade.applications.serve.errors import bad
from lade.applications.serve.fields import NULL, Fields, Text, TokenId, all_of, either, where
from lade.applications.serve.messages import Message
from lade.applications.serve.plan import Planner
from lade.applications.serve.service import Service
from lade.applications.serve.templated import BEGUN, Templated

GIVEN = {"not": NULL}
ONE = either(
    where("prompt", prompt=GIVEN, messages=NULL),
    where("messages", messages=GIVEN, prompt=NULL, add_special_tokens=NULL),
)


class TokenizeRequest(Templated):
    """The body of /tokenize: a prompt, or the fields of a chat that make one.

    Attributes:
        add_special_tokens: whether a prompt gets those of the tokenizer; a chat has those of its template.
        return_token_strs: whether the tokens are told as the vocabulary has them too.
    """

    model_config = ConfigDict(json_schema_extra=all_of(ONE, BEGUN))
    model: Text | None = None
    prompt: Text | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _is_one(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("must have either prompt or messages")
        if self.messages is not None and self.add_special_tokens is not None:
            raise ValueError("must have add_special_tokens only with prompt")
        return self

    def ids(self, planner: Planner) -> list[int]:
        if self.prompt is not None:
            return planner.prompts.of_text(self.prompt, special=self.add_special_tokens is not False)
        return planner.prompt(self.messages or [], self).ids


class DetokenizeRequest(Fields):
    """The body of /detokenize."""

    model: Text | None = None
    tokens: list[TokenId]


def add_tokens(app: FastAPI, service: Service) -> None:
    """Add both endpoints to an application."""
    prompts = service.planner.prompts

    @app.post("/tokenize", responses=described.TOKENS | ERRORS)
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        service.check_model(body.model)
        ids = await asyncio.to_thread(body.ids, service.planner)
        texts = prompts.tokenizer.convert_ids_to_tokens(ids) if body.return_token_strs else None
        return {"count": len(ids), "max_model_len": prompts.most, "tokens": ids, "token_strs": texts}

    @app.post("/detokenize", responses=described.TEXT_OF_TOKENS | ERRORS)
    async def detokenize(body: DetokenizeRequest) -> dict[str, Any]:
        service.check_model(body.model)
        if body.tokens and max(body.tokens) >= prompts.vocabulary:
            raise bad("tokens", f"token ids from 0 to {prompts.vocabulary - 1}", max(body.tokens))
        return {"prompt": await asyncio.to_thread(prompts.text_of, body.tokens)}
