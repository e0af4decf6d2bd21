"""Values in error messages: one short line each, whatever they are."""

from __future__ import annotations

import builtins
import reprlib
from pathlib import PurePath
from typing import Any

LONGEST = 60  # characters of a text, and of any plain value
LONGEST_LINE = 200  # characters


class _Short(reprlib.Repr):
    """Cuts texts and numbers, and containers in depth and length; shows other objects by their type."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = LONGEST
        self.maxlevel = 2

    def repr_str(self, x: str, level: int) -> str:
        return self._cut(builtins.repr(x[: self.maxstring + 1]))

    def repr_int(self, x: int, level: int) -> str:
        bits = x.bit_length()
        return (
            super().repr_int(x, level) if bits < 1000 else f"an integer of {bits} bits"
        )  # Python refuses to print longer ones

    def repr_instance(self, x: Any, level: int) -> str:
        if isinstance(x, type):
            return f"the class {x.__name__}"
        plain = x is None or isinstance(x, bool | float | complex | bytes | PurePath)
        return self._cut(builtins.repr(x)) if plain else type(x).__name__

    def repr_dtype(self, x: Any, level: int) -> str:
        return self._cut(builtins.repr(x))

    repr_device = repr_dtype  # torch's types, by name: torch is not imported here

    def _cut(self, text: str) -> str:
        return text if len(text) <= self.maxother else f"{text[: self.maxother]}..."


_short = _Short()


def shown(value: Any) -> str:
    """A value in one short line; models, tensors and other objects by the name of their type."""
    return _short.repr(value)


def first_line(error: BaseException) -> str:
    """What an error says, in its first line; its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def one_line(error: BaseException) -> str:
    """What a library's error says, in a line of bounded length."""
    return first_line(error)[:LONGEST_LINE]


def invalid(name: str, allowed: str, value: Any) -> ValueError:
    """The error about an argument: its name, what it must be and what was given."""
    return ValueError(f"{name} must be {allowed}, got {shown(value)}")
