"""SGLang's /add_external_corpus, /remove_external_corpus and /list_external_corpora: texts that answers may repeat."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import FastAPI, Request
from pydantic import Field

from lade.applications.serve import described
from lade.applications.serve.described import ERRORS
from lade.applications.serve.fields import Fields, Json, NotBuilt, Text
from lade.applications.serve.guard import KEY
from lade.applications.serve.schema import CorpusName
from lade.applications.serve.service import Service


class AddRequest(Fields):
    """The body of /add_external_corpus.

    Attributes:
        corpus_id: its name; one is made where it is not given.
    """

    corpus_id: CorpusName | None = None
    documents: Annotated[list[Text], Field(min_length=1, json_schema_extra={"contains": {"minLength": 1}})]
    file_path: NotBuilt = None  # clients do not name the server's files


class RemoveRequest(Fields):
    """The body of /remove_external_corpus."""

    corpus_id: CorpusName


def add_documents(app: FastAPI, service: Service) -> None:
    """Add the endpoints to an application."""
    corpora = service.corpora

    @app.post("/add_external_corpus", responses=described.MADE | ERRORS)
    async def add(body: AddRequest, request: Request) -> Json:
        key = request.scope.get(KEY)
        name, tokens = await asyncio.to_thread(corpora.add, key, body.corpus_id, body.documents)
        return {"success": True, "corpus_id": name, "message": "", "loaded_token_count": tokens}

    @app.post("/remove_external_corpus", responses=described.REMOVED | ERRORS)
    async def remove(body: RemoveRequest, request: Request) -> Json:
        corpora.remove(request.scope.get(KEY), body.corpus_id)
        return {"success": True, "message": ""}

    @app.get("/list_external_corpora", responses=described.CORPORA | ERRORS)
    async def listed(request: Request) -> Json:
        return {"success": True, "corpus_token_counts": corpora.tokens(request.scope.get(KEY)), "message": ""}
