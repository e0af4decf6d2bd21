"""Refusal of transformers' other decoding methods, where they would give another distribution.

Inside `refusing`, wrappers replace beam search and assisted generation; they raise for some models and call the
original for all others. The original objects are restored; below another library's patch, our wrapper stays and calls
the original.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from transformers import GenerationMixin

from lade.base.locks import fork_safe_lock

METHODS = ("_beam_search", "_assisted_decoding")
Reason = Callable[[Any], str | None]  # model -> why it may not decode in another way, or None

_lock = fork_safe_lock()
_open: list[Reason] = []  # of the scopes that are open
_replaced: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}  # name -> the original, ours


@contextlib.contextmanager
def refusing(reason: Reason) -> Iterator[None]:
    """Inside, beam search and assisted generation raise ValueError for models with a reason."""
    with _lock:
        _install()
        _open.append(reason)
    try:
        yield
    finally:
        with _lock:
            _open.remove(reason)
            if not _open:
                _restore()


def _install() -> None:
    for name in METHODS:
        if name not in _replaced:
            original = GenerationMixin.__dict__[name]
            ours = _wrapped(original)
            setattr(GenerationMixin, name, ours)
            _replaced[name] = original, ours


def _restore() -> None:
    for name in list(_replaced):
        original, ours = _replaced.pop(name)
        if GenerationMixin.__dict__[name] is ours:
            setattr(GenerationMixin, name, original)


def _wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        reason = next((found for each in list(_open) if (found := each(self)) is not None), None)
        if reason is not None:
            raise ValueError(f"{original.__name__.strip('_').replace('_', ' ')} is not available: {reason}")
        return original(self, *args, **kwargs)

    return method
