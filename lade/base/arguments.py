"""What users hand in, checked by what it can do: each check raises the one sentence about its argument, or nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from lade.base.shown import invalid, shown
from lade.base.wrappers import unwrapped

if TYPE_CHECKING:
    from torch import Tensor


class Streamer(Protocol):
    """What receives the tokens of a text while it is written, as streamers of transformers do."""

    def put(self, value: Tensor) -> Any: ...

    def end(self) -> Any: ...


def check_model(name: str, model: Any) -> None:
    """Any causal or encoder-decoder model of transformers passes, and the wrappers around one."""
    whole = None if isinstance(model, type) else unwrapped(model)
    generates = callable(getattr(whole, "generate", None))
    if not generates or not hasattr(getattr(whole, "config", None), "get_text_config"):
        raise invalid(name, "a transformers model that can generate", model)


def check_tokenizer(name: str, tokenizer: Any) -> None:
    """`None` passes."""
    if tokenizer is not None and not callable(getattr(tokenizer, "get_vocab", None)):
        raise invalid(name, "a transformers tokenizer or None", tokenizer)


def check_streamer(streamer: Any) -> None:
    """`None` passes."""
    if streamer is not None and not all(callable(getattr(streamer, name, None)) for name in ("put", "end")):
        raise invalid("streamer", "None or a streamer, which has put() and end()", streamer)


def check_path(name: str, path: Any) -> None:
    if not isinstance(path, str | os.PathLike) or path == "":
        raise invalid(name, "a path, as text or as pathlib.Path", path)


def check_switch(name: str, value: Any) -> None:
    """An error that names the argument where the value is neither on nor off."""
    if not isinstance(value, int) or value not in (0, 1):
        raise ValueError(f"{name}={shown(value)}: allowed are True, False, 1 and 0")


def check_integer(name: str, value: Any, allowed: str, holds: Callable[[int], bool]) -> None:
    """An error that names the argument where the value is no integer or does not hold."""
    if isinstance(value, bool) or not isinstance(value, int) or not holds(value):
        raise ValueError(f"{name}={shown(value)}: allowed is {allowed}")
