"""Calls that had begun when an answer had as many tokens as it may: their names, and what there is of their arguments.

Knows text; no markers around calls, and no functions.
"""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic import TypeAdapter

NAMED = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]+)"')
KEY = re.compile(r'\s*,\s*"(?:arguments|parameters)"\s*:\s*')
KEYS = (',"arguments":', ',"parameters":')
DECODER = json.JSONDecoder()
MEMBERS = TypeAdapter(dict[str, Any])


def calls_so_far(text: str, end: str) -> tuple[list[Any], tuple[str, str] | None] | None:
    """The calls of a text that goes on: one, or a list of some.

    Args:
        end: the marker behind them, of which the text may have a part.

    Returns:
        The JSON of those that are whole, and of the one behind them that has begun the name and the text of its
        arguments so far; `None` in its place where none has begun whose name is whole. `None` for another text.
    """
    listed, values = text.startswith("["), list[Any]()
    rest = text.removeprefix("[").lstrip()
    while listed or not values:
        try:
            value, size = DECODER.raw_decode(rest)
        except (ValueError, RecursionError):
            begun = _begun(rest)
            goes_on = begun is not None or object_so_far(rest) is not None
            return (values, begun) if goes_on or _ends(rest.removeprefix("]"), end) else None
        values.append(value)
        rest = rest[size:].lstrip().removeprefix("," if listed else "").lstrip()
    return (values, None) if _ends(rest, end) else None


def object_so_far(text: str) -> dict[str, Any] | None:
    """The members of a JSON object whose values are there; `None` if no object begins with this text."""
    try:
        return MEMBERS.validate_json(text, experimental_allow_partial=True) if text else {}
    except ValueError:
        return None


def _ends(rest: str, end: str) -> bool:
    return end.startswith(rest.lstrip())


def _begun(text: str) -> tuple[str, str] | None:
    """A call's name, and the text of its arguments so far."""
    named = NAMED.match(text)
    if named is None:
        return None
    name, rest = named[1], text[named.end() :]
    key = KEY.match(rest)
    if key is None:
        written = "".join(rest.split())
        return (name, "") if any(each.startswith(written) for each in KEYS) else None
    arguments = _without_end(rest[key.end() :])
    return None if object_so_far(arguments) is None else (name, arguments)


def _without_end(arguments: str) -> str:
    """The arguments alone, where they are whole and the call around them has not ended."""
    try:
        return arguments[: DECODER.raw_decode(arguments)[1]]
    except (ValueError, RecursionError):
        return arguments
