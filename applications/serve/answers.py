"""The endpoints that answer: OpenAI's and Anthropic's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import Response

import lade
from lade.applications.serve import described
from lade.applications.serve.anthropic.format import MessagesFormat
from lade.applications.serve.anthropic.request import CountRequest, MessagesRequest
from lade.applications.serve.chat_request import ChatRequest
from lade.applications.serve.described import ERRORS
from lade.applications.serve.errors import APIError
from lade.applications.serve.fields import Json
from lade.applications.serve.formats import ChatFormat, CompletionFormat, Format, asked_of
from lade.applications.serve.guard import KEY
from lade.applications.serve.logprobs import TokenTexts
from lade.applications.serve.plan import Text
from lade.applications.serve.responses.format import ResponsesFormat
from lade.applications.serve.responses.request import ResponsesRequest
from lade.applications.serve.schema import CompletionRequest, Sampling
from lade.applications.serve.service import Service
from lade.applications.serve.stream import SentAsEvents, SentWhole
from lade.applications.serve.tools import ToolParser
from lade.applications.serve.translated import Translated, TranslatedFormat

Result = TypeVar("Result")


def add_answers(app: FastAPI, service: Service) -> None:
    """Add them to an application."""
    tokens, name = TokenTexts(service.planner.prompts.tokenizer), service.settings.model

    @app.post("/v1/chat/completions", responses=described.CHAT | ERRORS, response_class=Response)
    async def chat(body: ChatRequest, request: Request) -> Response:
        service.check_model(body.model)
        choices = body.n or 1
        plan = partial(_chat, service, request, body)
        answer = await service.answer(plan, choices, choices, _tenant(service, request))
        form = ChatFormat(name, answer, tokens, asked_of(body), _parser(service, body))
        return _sent(service, body.stream, form)

    @app.post("/v1/completions", responses=described.COMPLETION | ERRORS, response_class=Response)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        service.check_model(body.model)
        choices, tenant = body.n or 1, _tenant(service, request)
        texts = choices * len(body.prompts)
        answer = await service.answer(
            lambda: service.planner.completion(body, _corpus(service, request, body)), texts, choices, tenant
        )
        return _sent(service, body.stream, CompletionFormat(name, answer, tokens, asked_of(body), bool(body.echo)))

    async def translated(body: Translated, request: Request, form: type[TranslatedFormat]) -> Response:
        chat = body.chat()
        service.check_model(chat.model)
        tenant = _tenant(service, request)
        answer = await _named(body, service.answer(partial(_chat, service, request, chat), 1, 1, tenant))
        parser = _parser(service, chat)
        return _sent(service, chat.stream, form(name, answer, tokens, body, None if parser is None else parser()))

    @app.post("/v1/responses", responses=described.RESPONSE | ERRORS, response_class=Response)
    async def responses(body: ResponsesRequest, request: Request) -> Response:
        return await translated(body, request, ResponsesFormat)

    @app.post("/v1/messages", responses=described.MESSAGES | ERRORS, response_class=Response)
    async def messages(body: MessagesRequest, request: Request) -> Response:
        return await translated(body, request, MessagesFormat)

    @app.post("/v1/messages/count_tokens", responses=described.INPUT | ERRORS)
    async def count_tokens(body: CountRequest) -> Json:
        chat = body.chat()
        service.check_model(chat.model)
        prompt = await _named(body, asyncio.to_thread(service.planner.prompt, chat.messages, chat))
        return {"input_tokens": len(prompt.ids)}


async def _named(body: Translated, awaited: Awaitable[Result]) -> Result:
    """What is awaited; errors about the chat's fields are about the body's."""
    try:
        return await awaited
    except APIError as error:
        raise error.renamed(body.names()) from error


def _parser(service: Service, body: ChatRequest) -> Callable[[], ToolParser] | None:
    """Makes parsers of calls, where the answer may have some."""
    names = frozenset(function["name"] for function in body.functions_offered)
    return partial(ToolParser, service.planner.prompts.tool_format, names) if names else None


def _sent(service: Service, stream: bool | None, form: Format) -> Response:
    return (SentAsEvents if stream else SentWhole)(service, form)


def _chat(service: Service, request: Request, body: ChatRequest) -> list[Text]:
    return service.planner.chat(body, _corpus(service, request, body))


def _corpus(service: Service, request: Request, body: Sampling) -> lade.Corpus | None:
    return service.corpora.chosen(request.scope.get(KEY), body.lade.corpus)


def _tenant(service: Service, request: Request) -> str | None:
    return service.settings.tenant(request.scope.get(KEY))
