"""Checks of arguments: each raises a ValueError that names the argument, what is allowed and the value, or passes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from lade.base.shown import invalid
from lade.base.wrappers import unwrapped

if TYPE_CHECKING:
    from torch import Tensor


class Streamer(Protocol):
    """Receives the tokens of a text as they are generated, like the streamers of transformers."""

    def put(self, value: Tensor) -> Any: ...

    def end(self) -> Any: ...


def check_model(name: str, model: Any) -> None:
    """Causal and encoder-decoder models of transformers pass, wrapped or not."""
    whole = None if isinstance(model, type) else unwrapped(model)
    generates = callable(getattr(whole, "generate", None))
    if not generates or not hasattr(getattr(whole, "config", None), "get_text_config"):
        raise invalid(name, "a transformers model that can generate", model)


def check_tokenizer(name: str, tokenizer: Any) -> None:
    """Tokenizers of transformers and `None` pass."""
    if tokenizer is not None and not callable(getattr(tokenizer, "get_vocab", None)):
        raise invalid(name, "a transformers tokenizer or None", tokenizer)


def check_streamer(streamer: Any) -> None:
    """Objects with `put` and `end` pass, and `None`."""
    if streamer is not None and not all(callable(getattr(streamer, name, None)) for name in ("put", "end")):
        raise invalid("streamer", "None or a streamer, which has put() and end()", streamer)


def check_path(name: str, path: Any) -> None:
    if not isinstance(path, str | os.PathLike) or path == "" or "\0" in str(path):
        raise invalid(name, "a path, as text or as pathlib.Path", path)


def check_switch(name: str, value: Any) -> None:
    """True, False, 1 and 0 pass."""
    if not isinstance(value, int) or value not in (0, 1):
        raise invalid(name, "True, False, 1 or 0", value)


def check_integer(name: str, value: Any, allowed: str, holds: Callable[[int], bool]) -> None:
    """Integers for which `holds` is true pass, booleans do not."""
    if isinstance(value, bool) or not isinstance(value, int) or not holds(value):
        raise invalid(name, allowed, value)
