"""The patch of transformers' decoding, and the ways to switch it on: `augment_all` and `lookahead` scopes.

`GenerationMixin._sample` is replaced while one of them is active, as are beam search and assisted generation, which run
as ever and are counted; the original objects are restored. So is the dispatcher of `lade.target.attention`, which
packed forwards need. The attention implementation "lade" stays registered until `restore_all`, as models may be loaded
with it. The environment (USE_LADE) is read here only, when a call begins.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from transformers import GenerationMixin

from lade.base.arguments import check_model, check_switch
from lade.base.environment import lenient_switch
from lade.base.locks import fork_safe_lock
from lade.base.shown import invalid
from lade.base.wrappers import unwrapped
from lade.config.default import default_config, forget_settings
from lade.config.settings import LookaheadConfig, check_config, check_size
from lade.engine.method import Method
from lade.entry.options import Arguments, Options
from lade.entry.reference import check_mode
from lade.entry.refusal import METHODS, refusing
from lade.entry.route import left_call, route_call
from lade.entry.warming import warm_up
from lade.target import attention, own
from lade.target.contrast import Contrast

CALLS: dict[str, Callable[..., Any]] = {"_sample": route_call, **dict.fromkeys(METHODS, left_call)}  # what is replaced


@dataclass(slots=True, eq=False)
class Scope:
    """A `lookahead` scope. Copies of a context know it, too, so that it notes itself when it ends."""

    model: Any
    options: Options
    closed: bool = False


_lock = fork_safe_lock()
_users = 0  # open scopes, plus one for augment_all
_augmented = False
_originals: dict[str, Callable[..., Any]] = {}  # by name of the method
_patches: dict[str, Callable[..., Any]] = {}  # in use; an older one, below another library's patch, calls the original
_scopes: ContextVar[tuple[Scope, ...]] = ContextVar("lade_scopes", default=())


def augment_all() -> None:
    """Let every transformers model decode with lookahead, with the settings of `config_lade`.

    Calling it again changes nothing. USE_LADE=0 (or false, no, off) in the environment switches it off; it is read at
    every call, and any other value counts as on, with one warning for an unknown one.
    """
    global _augmented
    with _lock:
        if not _augmented:
            _install()
            _augmented = True


def restore_all() -> None:
    """Undo `augment_all` and reset the settings of `config_lade` to the defaults.

    Models that were loaded with the attention implementation "lade" compute again after the next `augment_all`.
    Open scopes keep their settings; pools and warm tables stay (`drop_pools`).
    """
    global _augmented
    forget_settings()
    with _lock:
        own.remove()
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
    workers: int | None = None,
) -> Iterator[None]:
    """Inside this scope, in this thread or task, `model.generate` decodes with lookahead.

    Args:
        model: the model, or a wrapper (PEFT) around it.
        config: settings; `None` for the process-wide ones.
        method: draft with a model instead (`lade.DraftModel`, `lade.MultiCandidate`, `lade.SelfSpeculative`).
        reference: a text that the outputs may repeat, as token ids, or one per prompt; for mode "auto".
        warm: compute or load the model's warm table before the scope begins (`lade.warm_up`); for mode "auto". A
            table that is saved already is used without it too.
        contrast: decode contrastively, with an amateur model. Calls that cannot be contrastive raise
            ValueError, beams and assisted generation included. `LookaheadConfig(budget=1)` drafts nothing: one token
            per forward.
        workers: processes that share every call, in place of the config's (`LookaheadConfig.workers`).

    Raises:
        ValueError: an argument has the wrong type or does not fit the model, `method` is given with one of the others,
            or `warm` for a model, mode or method that uses no warm table.
    """
    check_model("model", model)
    check_config(config)
    if workers is not None:
        check_size("workers", workers, "workers")
        if method is not None:
            raise invalid("workers", f"None with method={type(method).__name__}", workers)
        config = replace(config or default_config(), workers=workers)
    arguments = Arguments(config, method, reference, contrast)
    check_switch("warm", warm)
    if warm and method is not None:
        raise ValueError(f"warm must be False with method={type(method).__name__}, got {warm!r}")
    options = arguments.options(model)
    if warm:
        check_mode("warm", options.config)
        warm_up(model)
    scope = Scope(unwrapped(model), options)
    _scopes.set((*_scopes.get(), scope))
    with _lock:
        _install()
    try:
        with contextlib.nullcontext() if contrast is None else refusing(_contrasts):
            yield
    finally:
        scope.closed = True
        with _lock:
            _remove()
        # Generators end their scopes in any order and context, so no earlier state is restored.
        _scopes.set(tuple(each for each in _scopes.get() if not each.closed))


def original_sample() -> Callable[..., Any]:
    """transformers' own `_sample`, also while it is replaced."""
    with _lock:
        return _originals.get("_sample", GenerationMixin._sample)


def _install() -> None:
    global _users
    if _users == 0:
        for name, call in CALLS.items():
            _originals[name] = GenerationMixin.__dict__[name]
            _patches[name] = _patched(name, _originals[name], call)
            setattr(GenerationMixin, name, _patches[name])
        own.install()
        attention.install()
    _users += 1


def _remove() -> None:
    global _users
    _users -= 1
    if _users:
        return
    attention.remove()
    for name, original in _originals.items():
        if GenerationMixin.__dict__[name] is _patches[name]:  # else another library's patch is on top of ours
            setattr(GenerationMixin, name, original)
    _originals.clear()
    _patches.clear()


def _patched(name: str, original: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        options = _options_for(self) if _patches.get(name) is method else None
        if options is None:
            return original(self, *args, **kwargs)
        return call(self, *args, **kwargs, options=options, plain=original)

    return method


def _options_for(model: Any) -> Options | None:
    """The options of the model's innermost scope, else the process-wide settings if lade is on; `None` if it is off."""
    scope = _innermost(model)
    if scope is not None:
        return scope.options
    return Options(default_config()) if _augmented and lenient_switch("USE_LADE", default=True) else None


def _innermost(model: Any) -> Scope | None:
    return next((scope for scope in reversed(_scopes.get()) if scope.model is model and not scope.closed), None)


def _contrasts(model: Any) -> str | None:
    """Why other decoding methods are refused for this model in the current scope, or `None`."""
    scope = _innermost(model)
    contrastive = scope is not None and scope.options.contrast is not None
    return "contrastive decoding, which this scope asks for, is greedy or samples" if contrastive else None
