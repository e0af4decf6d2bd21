"""The HTTP application: its endpoints, and what becomes of their errors."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response

from lade.applications.serve import described
from lade.applications.serve.answers import add_answers
from lade.applications.serve.described import ERRORS
from lade.applications.serve.documents import add_documents
from lade.applications.serve.errors import BAD_REQUEST, APIError, internal, of_validation, unavailable
from lade.applications.serve.guard import Guard
from lade.applications.serve.metrics import CONTENT_TYPE
from lade.applications.serve.pages import add_page
from lade.applications.serve.service import Service
from lade.applications.serve.tokens import add_tokens
from lade.base.version import VERSION

HTTP_ERRORS = (400, 404, 405, 413, 415, 422)  # that the framework raises itself


def create_app(service: Service, guarded: bool = True) -> Any:
    """The application, as ASGI servers take it.

    Args:
        guarded: whether it checks who asks; else a guard before it does, and names the key in the scope.
    """
    app = FastAPI(title="lade", version=VERSION, lifespan=_lifespan(service), docs_url=None, redoc_url=None)
    _add_errors(app)
    _add_models(app, service)
    _add_state(app, service)
    add_answers(app, service)
    add_tokens(app, service)
    add_documents(app, service)
    add_page(app)
    page = app.openapi
    app.openapi = lambda: described.exact(described.without_validation(page()))  # type: ignore[method-assign]
    paths = frozenset(getattr(route, "path_format", "") for route in app.routes)
    return Guard(app, service.settings, service.metrics, paths) if guarded else app


def _lifespan(service: Service) -> Any:
    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.stop()

    return lifespan


def _answered(error: APIError) -> Response:
    return JSONResponse(error.body(), error.status, error.headers)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(APIError)
    async def api(request: Request, error: APIError) -> Response:
        return _answered(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return _answered(of_validation(error.errors()))

    async def http(request: Request, error: HTTPException) -> Response:
        unread = error.status_code == BAD_REQUEST  # a body that Python's JSON does not take
        message = "the body must be JSON in UTF-8, of moderate depth and numbers" if unread else str(error.detail)
        return _answered(APIError(error.status_code, message, headers=error.headers))

    for status in HTTP_ERRORS:
        app.add_exception_handler(status, http)  # type: ignore[arg-type]  # called with this error alone

    @app.exception_handler(Exception)
    async def other(request: Request, error: Exception) -> Response:
        return _answered(internal())


def _add_models(app: FastAPI, service: Service) -> None:
    created = int(time.time())

    def card() -> dict[str, Any]:
        name, most = service.settings.model, service.planner.prompts.most
        return {"id": name, "object": "model", "created": created, "owned_by": "lade", "max_model_len": most}

    @app.get("/v1/models/", include_in_schema=False)
    @app.get("/v1/models", responses=described.MODELS | ERRORS)
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card()]}

    @app.get("/v1/models/{model:path}", responses=described.MODEL | ERRORS)
    async def model(model: str) -> dict[str, Any]:
        service.check_model(model)
        return card()


def _add_state(app: FastAPI, service: Service) -> None:
    @app.head("/health", include_in_schema=False)
    @app.get("/health", responses=described.HEALTH | ERRORS)
    async def health() -> dict[str, Any]:
        if not service.healthy:
            raise unavailable("the server does not decode")
        return {"status": "ok"}

    @app.head("/metrics", include_in_schema=False)
    @app.get("/metrics", responses=described.METRICS | ERRORS, response_class=Response)
    async def metrics() -> Response:
        return Response(service.metrics.page(), media_type=CONTENT_TYPE)
