"""The dispatcher that stands in transformers' registry of attention functions in place of those that ours replaces.

In a packed forward, which a context variable shows, that forward attends, row by row; any other call goes to what was
registered before. Knows transformers' registry, no model.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from transformers.integrations.flash_attention import flash_attention_forward
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from lade.base.locks import fork_safe_lock
from lade.target import own
from lade.target.grouped import GroupedForward
from lade.target.rowattention import PackedForward, RootForward
from lade.target.sidebyside import SideBySide

NAME = "sdpa"

Function = Callable[..., Any]
Forward = PackedForward | RootForward | GroupedForward | SideBySide

# Transformers' own functions, by the name of the implementation: packed forwards compute what these do.
STOCK: dict[str, Function] = {
    NAME: sdpa_attention_forward,
    "flash_attention_2": flash_attention_forward,
    "flash_attention_3": flash_attention_forward,
    "flash_attention_4": flash_attention_forward,
    "flex_attention": flex_attention_forward,
    own.NAME: own.attention,
}

_lock = fork_safe_lock()
_users = Counter[str]()  # by the name of the implementation
_before: dict[Function, Function] = {}  # by dispatcher, what it stands in front of
_running: ContextVar[Forward | None] = ContextVar("lade_packed", default=None)


class packed:  # noqa: N801 - a scope, which contextlib would make three times as slow
    """Forwards of this thread or task in the scope are packed ones.

    Args:
        forward: their rows.
        name: of the attention implementation that the model was loaded with.
    """

    __slots__ = ("_forward", "_name", "_token")

    def __init__(self, forward: Forward, name: str = NAME) -> None:
        self._forward, self._name = forward, name

    def __enter__(self) -> None:
        install(self._name)
        self._token = _running.set(self._forward)

    def __exit__(self, *raised: object) -> None:
        _running.reset(self._token)
        remove(self._name)


def packed_rows() -> int:
    """Rows of the packed forward that runs in this thread or task; 1 if none does."""
    forward = _running.get()
    return 1 if forward is None else forward.rows


def install(name: str = NAME) -> None:
    """Register the dispatcher, or one more user of it. If another function was put on top, go on top of that."""
    with _lock:
        if name == own.NAME:
            own.install()
        registered = AttentionInterface._global_mapping[name]
        if registered not in _before:
            AttentionInterface.register(name, _dispatcher(registered))
        _users[name] += 1


def remove(name: str = NAME) -> None:
    """Undo an `install`; the last one restores what was registered before, unless another function is on top."""
    with _lock:
        _users[name] -= 1
        registered = AttentionInterface._global_mapping[name]
        if not _users[name] and registered in _before:
            AttentionInterface.register(name, _before[registered])


def registered_function(name: str) -> Function | None:
    """The attention function that a model loaded with this implementation uses, apart from ours."""
    found = ALL_ATTENTION_FUNCTIONS.get(name)
    return _before.get(found, found)


def can_pack(implementation: str) -> bool:
    """Whether models of an implementation can be packed: those that use a function of transformers' own."""
    return implementation in STOCK and registered_function(implementation) is STOCK[implementation]


@functools.lru_cache(maxsize=8)  # one object for one function: compiled models depend on what they found here
def _dispatcher(before: Function) -> Function:
    @functools.wraps(before)
    def dispatch(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs: Any,
    ) -> Any:
        forward: Forward | None = None
        if not torch.compiler.is_compiling():
            forward = _running.get()
        elif _traces_grouped():
            forward = GroupedForward()
        if forward is None:
            return before(module, query, key, value, attention_mask, **kwargs)
        return forward.attend(query, key, value, attention_mask, **kwargs)

    _before[dispatch] = before
    return dispatch


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _traces_grouped() -> bool:
    """Whether what torch's compiler traces runs in the scope of a forward that it may find, each time."""
    forward = _running.get()
    return isinstance(forward, GroupedForward) and forward.traced
