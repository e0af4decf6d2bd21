"""Errors in OpenAI's format: a status, a message that names the field, and nothing of the server's inside."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from lade.base.shown import shown

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, TIMEOUT, TOO_LARGE, UNSUPPORTED = 400, 401, 403, 404, 408, 413, 415
TOO_MANY, HEAD_TOO_LARGE, INTERNAL, UNAVAILABLE = 429, 431, 500, 503
TYPES = {
    UNAUTHORIZED: "authentication_error",
    FORBIDDEN: "permission_error",
    NOT_FOUND: "not_found_error",
    TOO_MANY: "rate_limit_error",
    INTERNAL: "server_error",
    UNAVAILABLE: "server_error",
}
TAGGED = ("response_format", "format", "tool_choice")  # fields whose place is followed by the branch of a union
# The branch of a union.
BRANCH = re.compile(
    r"[\[\](]|^(str|int|float|bool|dict|list|constrained-\w+|[A-Z]\w+(Part|Format|Tool|Choice|Item|Block))$"
)
# How the kinds of error end that say of which type a branch of a union is; and the kind of a word, which no object is.
OTHER_TYPE, WORD = "_type", "literal_error"


class APIError(Exception):
    """An answer with an error.

    Attributes:
        status: of HTTP.
        param: the field of the request that is wrong, if one is.
        code: for programs; `None` where the type says it.
        headers: further headers of the answer.
        details: what Anthropic's packages read of an error.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.headers = status, param, code, dict(headers or {})
        self.details = details

    def renamed(self, names: Mapping[str, str]) -> APIError:
        """The same error about a request that has its field under another name, of those that differ."""
        if self.param is None or self.param not in names:
            return self
        name = names[self.param]
        return APIError(self.status, str(self).replace(self.param, name, 1), name, self.code, self.headers)

    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "invalid_request_error")
        fields: dict[str, Any] = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        if self.details is not None:
            fields["details"] = dict(self.details)
        return {"type": "error", "error": fields}  # the type is Anthropic's


def bad(param: str, allowed: str, value: Any, code: str | None = None) -> APIError:
    """The error about a field: its name, what it must be and what was given."""
    return APIError(BAD_REQUEST, f"{param} must be {allowed}, got {shown(value)}", param, code)


def busy(message: str = "the server has as many requests as it may hold; try again later") -> APIError:
    return APIError(TOO_MANY, message, code="queue_full", headers={"Retry-After": "1"})


def unavailable(message: str = "the server shuts down") -> APIError:
    return APIError(UNAVAILABLE, message, headers={"Retry-After": "5"})


def internal() -> APIError:
    return APIError(INTERNAL, "the server could not answer; its log says why")


def of_validation(errors: Sequence[Mapping[str, Any]]) -> APIError:
    """The error of a body that does not validate, from pydantic's errors: the deepest one, which says most, a wrong
    field before one that is not given."""
    places = [(_path(error["loc"]), error) for error in errors]
    path, error = max(places, key=lambda place: (len(place[0]), place[1]["type"] != "missing"))
    if error["type"] == "json_invalid":
        return APIError(BAD_REQUEST, f"the body must be JSON, got another text ({error['ctx']['error']})")
    if isinstance(error.get("input"), bytes):
        return APIError(BAD_REQUEST, "the body must be JSON, with the header Content-Type: application/json")
    param = ".".join(path) or None
    message = _sentence(param or "the body", [each for place, each in places if place == path])
    cause = error.get("ctx", {}).get("error")
    return APIError(BAD_REQUEST, message, param, details=getattr(cause, "details", None))


def _path(location: Sequence[Any]) -> list[str]:
    """The names and indices of a field, without the branches of unions that pydantic tried."""
    found: list[str] = []
    for before, part in pairwise(location):
        branch = before in TAGGED or (isinstance(part, str) and BRANCH.search(part))
        if not branch:
            found.append(str(part))
    return found


def _sentence(name: str, errors: Sequence[Mapping[str, Any]]) -> str:
    """What a field must be. Several errors are the branches of a union."""
    error = errors[0]
    kind, message = error["type"], str(error["msg"])
    if kind == "missing":
        return f"{name} must be given, got none"
    if kind == "extra_forbidden":
        return f"{name} must be left out, since the server does not know it"
    if kind == "value_error":
        return f"{name} {message.removeprefix('Value error, ')}"
    if kind == "union_tag_invalid":
        return f"{name} must have a type of {error['ctx']['expected_tags']}, got {shown(error['ctx']['tag'])}"
    if kind == "union_tag_not_found":
        return f"{name} must have a type, got {shown(error.get('input'))}"
    other = WORD if isinstance(error.get("input"), dict) else OTHER_TYPE
    told = [each for each in errors if not each["type"].endswith(other)] or errors
    allowed = dict.fromkeys(re.sub(r"^\w+ should ", "", str(each["msg"])) for each in told)
    return f"{name} must {' or '.join(allowed)}, got {shown(error.get('input'))}"
