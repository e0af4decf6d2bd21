"""JSON text that must be an object, with errors that say where it stands; and files that hold it.

Stricter than Python's reader, so that nobody behind it meets what breaks later: every name stands once, numbers are
finite and not huge, nesting is bounded, text is valid Unicode.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, NoReturn

from lade.base.shown import shown
from lade.files.regularfile import UnreadableFileError, naming, read_bytes, read_text

DEEPEST = 32  # objects and lists inside each other
DIGITS = 20  # of an integer: about 64 bits
MARKS = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)  # strings, whole or cut off, and brackets
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def json_object(text: str, where: object) -> dict[str, Any]:
    """The object. UnreadableFileError, which begins with `where`, for anything else."""
    found = json_value(text, where)
    if not isinstance(found, dict):
        raise UnreadableFileError(f"{where}: a JSON object is needed, not {type(found).__name__}")
    return found


def json_value(text: str, where: object) -> Any:
    """Whatever the text holds. UnreadableFileError, which begins with `where`, where it is not such JSON."""
    try:
        if _depth(text) > DEEPEST:
            raise ValueError(f"nesting must be at most {DEEPEST} deep")
        found = _DECODER.decode(text)
        if SURROGATE.search(text):
            json.dumps(found, ensure_ascii=False).encode()  # fails where one stands alone
    except (ValueError, RecursionError) as error:
        raise UnreadableFileError(f"{where}: is not JSON ({error})") from error
    return found


def read_object(path: Path, most: int, where: object) -> dict[str, Any]:
    """The object in a file of at most `most` bytes. UnreadableFileError, which begins with `where`, if it has none."""
    with naming(where):
        content = read_bytes(path, most)
    try:
        return json_object(content.decode(), where)
    except UnicodeDecodeError as error:
        raise UnreadableFileError(f"{where}: is not JSON ({error})") from error


def read_lines(path: Path, most: int) -> list[tuple[int, str]]:
    """The lines of a JSON-lines file that are not blank, and their numbers. Errors begin with the path."""
    with naming(path):
        lines = read_text(path, most).split("\n")  # not splitlines: a JSON string may hold U+2028
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _depth(text: str) -> int:
    """Of the brackets outside of strings."""
    deepest = depth = 0
    for found in MARKS.finditer(text) if text.count("[") + text.count("{") > DEEPEST else ():
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        deepest = max(deepest, depth)
    return deepest


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {shown(name)} stands twice")
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
