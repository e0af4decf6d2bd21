"""Strict JSON from text and from files; errors begin with the place.

Stricter than Python's reader, so that callers meet nothing that fails later: names are unique, numbers are finite and
not huge, nesting is bounded, text is valid Unicode.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, NoReturn

from lade.base.shown import shown
from lade.files.regularfile import UnreadableFileError, naming, read_bytes, read_text

MAX_DEPTH = 32  # of nested objects and lists
DIGITS = 20  # of an integer: about 64 bits
TOKENS = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)  # strings, ended or not, and brackets
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def json_object(text: str, where: object) -> dict[str, Any]:
    """The object in this text. UnreadableFileError, which begins with `where`, for anything else."""
    found = json_value(text, where)
    if not isinstance(found, dict):
        raise UnreadableFileError(f"{where}: must be a JSON object, got {type(found).__name__}")
    return found


def json_value(text: str, where: object) -> Any:
    """The value in this text. UnreadableFileError, which begins with `where`, if it is not strict JSON."""
    try:
        if _is_deep(text):
            raise ValueError(f"nesting must be at most {MAX_DEPTH} deep")
        found = _DECODER.decode(text)
        if SURROGATE.search(text):
            json.dumps(found, ensure_ascii=False).encode()  # fails if one is unpaired
    except (ValueError, RecursionError) as error:
        raise UnreadableFileError(f"{where}: is not JSON ({error})") from error
    return found


def read_object(path: Path, most: int, where: object) -> dict[str, Any]:
    """The object in a file of at most `most` bytes, else UnreadableFileError, which begins with `where`."""
    with naming(where):
        content = read_bytes(path, most)
    try:
        return json_object(content.decode(), where)
    except UnicodeDecodeError as error:
        raise UnreadableFileError(f"{where}: is not JSON ({error})") from error


def read_lines(path: Path, most: int) -> list[tuple[int, str]]:
    """The non-blank lines of a JSON-lines file with their numbers. Errors begin with the path."""
    with naming(path):
        lines = read_text(path, most).split("\n")  # not splitlines: a JSON string may hold U+2028
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _is_deep(text: str) -> bool:
    """Whether brackets outside of strings nest deeper than `MAX_DEPTH`; reads no further than to where they do."""
    depth = 0
    for found in TOKENS.finditer(text) if text.count("[") + text.count("{") > MAX_DEPTH else ():
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        if depth > MAX_DEPTH:
            return True
    return False


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"a name must appear once in an object, got {shown(name)} twice")
        found[name] = value
    return found


def _integer(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"an integer must have at most {DIGITS} characters, got {len(digits)}")
    return int(digits)


def _number(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"a number must be finite, got {shown(digits)}")
    return number


def _constant(name: str) -> NoReturn:
    raise ValueError(f"a number must be finite, got {name}")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_number, parse_constant=_constant
)
