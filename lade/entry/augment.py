"""Switching lookahead on: the one patch point in transformers, and the scopes that use it.

`GenerationMixin._sample` is replaced while `augment_all` or a `lookahead` scope wants it, and put back by identity. The
environment (USE_LADE) is read here only, when a call begins.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from transformers import GenerationMixin

from lade.base.arguments import check_model, check_switch
from lade.base.environment import lenient_switch
from lade.base.locks import fork_safe_lock
from lade.base.wrappers import unwrapped
from lade.config.default import default_config, forget_settings
from lade.config.settings import LookaheadConfig
from lade.engine.method import Method
from lade.entry.options import Arguments, Options
from lade.entry.reference import check_mode
from lade.entry.refusal import refusing
from lade.entry.route import route_call
from lade.memory.warm.warming import warm_up
from lade.target.contrast import Contrast


@dataclass(frozen=True, slots=True)
class Scope:
    """One `lookahead` scope: which model's calls it is for, and what they get."""

    model: Any
    options: Options


_lock = fork_safe_lock()
_users = 0  # open scopes, and one for augment_all
_augmented = False
_original: Callable[..., Any] | None = None
_patch: Callable[..., Any] | None = None  # ours, while it is in use; an older one under another's patch passes on
_scopes: ContextVar[tuple[Scope, ...]] = ContextVar("lade_scopes", default=())


def augment_all() -> None:
    """Let every transformers model decode with lookahead, by the settings of `config_lade`; again changes nothing.

    USE_LADE=0 (or false, no, off) in the environment switches it off call by call; a value that says neither on nor off
    is taken as on, with one warning.
    """
    global _augmented
    with _lock:
        if not _augmented:
            _install()
            _augmented = True


def restore_all() -> None:
    """Undo `augment_all`, and what `config_lade` set: the settings are the defaults again.

    Scopes that are open keep theirs; pools and warm tables stay (`drop_pools`).
    """
    global _augmented
    forget_settings()
    with _lock:
        if _augmented:
            _augmented = False
            _remove()


@contextlib.contextmanager
def lookahead(
    model: Any,
    config: LookaheadConfig | None = None,
    *,
    method: Method | None = None,
    reference: Any = None,
    warm: bool = False,
    contrast: Contrast | None = None,
) -> Iterator[None]:
    """Inside this scope, in this thread or task, `model.generate` decodes with lookahead.

    Args:
        model: the model, or a wrapper (PEFT) around it.
        config: its settings; the process-wide ones where `None`.
        method: draft with a model instead (`lade.DraftModel`, `lade.MultiCandidate`, `lade.SelfSpeculative`).
        reference: a text that the outputs may repeat, as token ids, or one per prompt; for mode "auto".
        warm: compute the model's warm table before the scope begins, or load it where it is kept (`lade.warm_up`); for
            mode "auto". Without it, a table that is kept is used all the same.
        contrast: decode contrastively, with an amateur beside the model. Calls that cannot be contrastive fail then,
            those for beams and assisted generation included. `LookaheadConfig(budget=1)` drafts nothing: one token per
            forward.

    Raises:
        ValueError: config is not a LookaheadConfig, model has no `generate`, reference is no text, method or contrast
            does not go with the model, method stands beside one of these, or warm is given for a model, a mode or a
            method that has no use for a table.
    """
    check_model("model", model)
    arguments = Arguments(config, method, reference, contrast)
    check_switch("warm", warm)
    if warm and method is not None:
        raise ValueError(f"warm must be False beside method={type(method).__name__}, got {warm!r}")
    options = arguments.options(model)
    if warm:
        check_mode("warm", options.config)
        warm_up(model)
    scope = Scope(unwrapped(model), options)
    token = _scopes.set((*_scopes.get(), scope))
    with _lock:
        _install()
    try:
        with contextlib.nullcontext() if contrast is None else refusing(_contrasts):
            yield
    finally:
        with _lock:
            _remove()
        _scopes.reset(token)


def original_sample() -> Callable[..., Any]:
    """transformers' own `_sample`, whether or not it is replaced at the moment."""
    with _lock:
        return _original if _original is not None else GenerationMixin._sample


def _install() -> None:
    global _users, _original, _patch
    if _users == 0:
        _original = GenerationMixin.__dict__["_sample"]
        GenerationMixin._sample = _patch = _patched(_original)
    _users += 1


def _remove() -> None:
    global _users, _original, _patch
    _users -= 1
    if _users:
        return
    if GenerationMixin.__dict__["_sample"] is _patch:  # else another library's patch is on top: not ours to remove
        GenerationMixin._sample = _original
    _original = _patch = None


def _patched(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _sample(self: Any, *args: Any, **kwargs: Any) -> Any:
        options = _options_for(self) if _patch is _sample else None
        if options is None:
            return original(self, *args, **kwargs)
        return route_call(self, *args, **kwargs, options=options, plain=original)

    return _sample


def _options_for(model: Any) -> Options | None:
    """Those of the model's innermost scope, else the process-wide settings where lade is switched on."""
    scope = _innermost(model)
    if scope is not None:
        return scope.options
    return Options(default_config()) if _augmented and lenient_switch("USE_LADE", default=True) else None


def _innermost(model: Any) -> Scope | None:
    return next((scope for scope in reversed(_scopes.get()) if scope.model is model), None)


def _contrasts(model: Any) -> str | None:
    """Why other decoding methods are refused for this model, here and now."""
    scope = _innermost(model)
    contrastive = scope is not None and scope.options.contrast is not None
    return "contrastive decoding, which is asked for here, is greedy or samples" if contrastive else None
