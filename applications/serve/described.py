"""What the OpenAPI page says of answers: their schemas in JSON, and their statuses."""

from __future__ import annotations

from typing import Any

from lade.applications.serve.connection import EVENTS
from lade.applications.serve.metrics import CONTENT_TYPE

Json = dict[str, Any]
Responses = dict[int | str, Json]
STATUSES = {
    400: "A field is wrong.",
    401: "No valid API key.",
    403: "The Host or Origin is not allowed.",
    404: "There is no such model or path.",
    405: "The path has other methods.",
    408: "The body takes too long.",
    413: "The body is too large.",
    429: "Too many requests wait.",
    500: "The server failed.",
    503: "The server shuts down.",
}
TEXT: Json = {"type": "string"}
COUNT: Json = {"type": "integer", "minimum": 0}


def _object(**properties: Json) -> Json:
    """An object with at least these properties."""
    return {"type": "object", "required": list(properties), "properties": properties}


def _list(items: Json, least: int = 0) -> Json:
    return {"type": "array", "items": items, "minItems": least}


def _maybe(kind: str) -> Json:
    return {"type": [kind, "null"]}


def _said(content: Json, description: str = "The answer.") -> Json:
    return {"description": description, "content": content}


def _json(schema: Json) -> Responses:
    return {200: _said({"application/json": {"schema": schema}})}


def _streamed(schema: Json) -> Responses:
    return {200: _said({EVENTS: {}, "application/json": {"schema": schema}}, "The answer, or a stream of it.")}


def _choice(**properties: Json) -> Json:
    finish = {"enum": ["stop", "length", "tool_calls"]}
    return _object(index=COUNT, logprobs=_maybe("object"), finish_reason=finish, **properties)


ERROR = _object(error=_object(message=TEXT, type=TEXT, param=_maybe("string"), code=_maybe("string")))
ERRORS: Responses = {status: _said({"application/json": {"schema": ERROR}}, told) for status, told in STATUSES.items()}
USAGE = _object(
    prompt_tokens=COUNT,
    completion_tokens=COUNT,
    total_tokens=COUNT,
    prompt_tokens_details=_object(cached_tokens=COUNT),
    completion_tokens_details=_object(accepted_prediction_tokens=COUNT, rejected_prediction_tokens=COUNT),
)
MESSAGE = _object(role={"const": "assistant"}, content=_maybe("string"), refusal={"type": "null"})
HEAD: Json = {"id": TEXT, "created": COUNT, "model": TEXT, "usage": USAGE}
CHAT = _streamed(_object(**HEAD, object={"const": "chat.completion"}, choices=_list(_choice(message=MESSAGE), 1)))
COMPLETION = _streamed(_object(**HEAD, object={"const": "text_completion"}, choices=_list(_choice(text=TEXT), 1)))
SAID = _object(id=TEXT, type={"const": "message"}, content=_list(_object(text=TEXT), 1))
ENDED: Json = {"enum": ["completed", "incomplete"]}
CALLED = _object(id=TEXT, type={"const": "function_call"}, call_id=TEXT, name=TEXT, arguments=TEXT, status=ENDED)
RESPONSE = _streamed(
    _object(
        id=TEXT,
        object={"const": "response"},
        created_at=COUNT,
        model=TEXT,
        status=ENDED,
        output=_list({"anyOf": [SAID, CALLED]}, 1),
        usage=_object(
            input_tokens=COUNT,
            input_tokens_details=_object(cached_tokens=COUNT, cache_write_tokens=COUNT),
            output_tokens=COUNT,
            output_tokens_details=_object(reasoning_tokens=COUNT),
            total_tokens=COUNT,
        ),
    )
)
TEXT_BLOCK = _object(type={"const": "text"}, text=TEXT)
TOOL_USE = _object(type={"const": "tool_use"}, id=TEXT, name=TEXT, input={"type": "object"})
MESSAGES = _streamed(
    _object(
        id=TEXT,
        type={"const": "message"},
        role={"const": "assistant"},
        model=TEXT,
        content=_list({"anyOf": [TEXT_BLOCK, TOOL_USE]}),
        stop_reason={"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
        stop_sequence=_maybe("string"),
        usage=_object(input_tokens=COUNT, output_tokens=COUNT, cache_read_input_tokens=COUNT),
    )
)
INPUT = _json(_object(input_tokens=COUNT))
CARD = _object(
    id=TEXT, object={"const": "model"}, created=COUNT, owned_by={"const": "lade"}, max_model_len=_maybe("integer")
)
MODEL, MODELS = _json(CARD), _json(_object(object={"const": "list"}, data=_list(CARD, 1)))
TOKENS = _json(_object(count=COUNT, max_model_len=_maybe("integer"), tokens=_list(COUNT), token_strs=_maybe("array")))
TEXT_OF_TOKENS = _json(_object(prompt=TEXT))
MADE = _json(_object(success={"const": True}, corpus_id=TEXT, message=TEXT, loaded_token_count=COUNT))
REMOVED = _json(_object(success={"const": True}, message=TEXT))
CORPORA = _json(_object(success={"const": True}, corpus_token_counts={"type": "object"}, message=TEXT))
HEALTH = _json(_object(status={"const": "ok"}))
METRICS: Responses = {200: _said({CONTENT_TYPE: {"schema": TEXT}})}


def without_validation(page: Json) -> Json:
    """An OpenAPI page without FastAPI's own status 422: errors of validation have status 400 here."""
    for path in page["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        page["components"]["schemas"].pop(name, None)
    return page


def exact(value: Any) -> Any:
    """A part of the page with whole numbers as integers: FastAPI makes floats of bounds, whose text is rounded."""
    if isinstance(value, dict):
        return {name: exact(each) for name, each in value.items()}
    if isinstance(value, list):
        return [exact(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
