"""Patches on a model: hooks, methods replaced on an instance, modules in training mode.

Patches of known libraries treat all tokens alike, or the self-probe detects them. What a user's code does to a token
tree is unknown: it may count calls, read shapes or be switched on later. Knows no tree.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules import module as torch_module

# Packages whose patches the self-probe judges.
KNOWN = {
    "accelerate",
    "bitsandbytes",
    "compressed_tensors",
    "kernels",
    "lade",
    "liger_kernel",
    "peft",
    "torch",
    "transformers",
}
HARMLESS = {"lade", "transformers"}  # packages whose hooks change nothing
OF_ONE_CALL = "peft.tuners."  # modules whose hooks depend on the rows of a call: mixed and activated adapters
HOOKS = ("_forward_pre_hooks", "_forward_hooks")
CALLED = {"forward", "__call__", "_call_impl", "_wrapped_call_impl"}  # what runs when a module is called
# Modules of base classes whose methods no forward runs.
BASES = ("torch.nn.modules.module", "transformers.modeling_utils", "transformers.generation", "transformers.utils")
LOOP = ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation", "_prefill", "_has_unfinished_sequences")


@dataclass(frozen=True, slots=True)
class Patches:
    """The patches on a model.

    Attributes:
        foreign: describes a patch that is of no known library; `None` if there is none.
        key: changes with every patch that may change what the model computes.
        training: whether a module is in training mode.
    """

    foreign: str | None
    key: Hashable
    training: bool


class _Same:
    """Compares objects by identity, through a weak reference where possible, since many patches hold the model."""

    __slots__ = ("_hash", "_thing")

    def __init__(self, thing: Any) -> None:
        self._hash = id(thing)
        self._thing: Callable[[], Any] = _reference(thing)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and (mine := self._thing()) is not None and mine is other._thing()


def _reference(thing: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(thing)
    except TypeError:
        return lambda: thing


def patches_of(model: torch.nn.Module) -> Patches:
    """Inspect all modules of a model. Runs in every call: a third of a microsecond per module."""
    patched: list[tuple[int, torch.nn.Module]] = []
    training: list[int] = []
    kinds: dict[Any, frozenset[str]] = {}
    kind: Any
    waiting: list[torch.nn.Module | None] = [model]
    index = 0
    while waiting:
        module = waiting.pop()
        if module is None:
            continue
        own, kind = module.__dict__, type(module)
        names = kinds.get(kind)
        if names is None:
            names = kinds[kind] = _methods(kind)
        if own["_forward_hooks"] or own["_forward_pre_hooks"] or not own.keys().isdisjoint(names):
            patched.append((index, module))
        if own["training"]:
            training.append(index)
        if children := own["_modules"]:
            waiting += children.values()
        index += 1
    found = [(index, module, *each) for index, module in patched for each in _functions(module)]
    foreign = (_foreign(name, function, module, model) for _, module, name, function in found)
    return Patches(
        _global_hooks() or next(filter(None, foreign), None),
        (
            tuple((kind, kind.forward, kind.__call__) for kind in kinds),
            tuple((index, name, _Same(function)) for index, _, name, function in found),
            tuple(training),
        ),
        bool(training),
    )


def overridden(model: Any) -> str | None:
    """Describes a method of plain decoding's loop that is not of transformers or PEFT, or `None`."""
    for name in LOOP:
        for function in layers(getattr(model, name, None)):
            if _package(function) not in ("transformers", "peft"):
                return f"{name} of {_origin(function)}"
    return None


@functools.lru_cache(maxsize=4096)
def _methods(kind: Any) -> frozenset[str]:
    """Names that, set on an instance, replace a method of its class that a forward may run."""
    classes = [each for each in kind.__mro__ if not each.__module__.startswith(BASES) and each is not object]
    names = {name for each in classes for name, value in vars(each).items() if callable(value)}
    return frozenset(names | CALLED) - {"prepare_inputs_for_generation", "extra_repr"}  # the latter only prints


def _functions(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Names and functions of the hooks and replaced methods of a module, without those that change nothing."""
    own = module.__dict__
    for hooks in HOOKS:
        yield from ((hooks, hook) for hook in own[hooks].values() if _package(hook) not in HARMLESS)
    kind: Any = type(module)
    for name in own.keys() & _methods(kind):
        function = own[name]
        while _package(function) == "lade" and hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        if callable(function) and not _is_classes(function, name, module):
            yield name, function


def _is_classes(function: Any, name: str, module: torch.nn.Module) -> bool:
    return getattr(function, "__func__", None) is getattr(type(module), name, function)


def _global_hooks() -> str | None:
    for name in ("_global_forward_pre_hooks", "_global_forward_hooks"):
        for hook in getattr(torch_module, name, {}).values():
            if _package(hook) not in KNOWN:
                return f"a forward hook on all modules, of {_origin(hook)}"
    return None


def _foreign(name: str, function: Any, module: torch.nn.Module, model: torch.nn.Module) -> str | None:
    for layer in layers(function):
        if _is_classes(layer, name, module):
            return None
        if _package(layer) not in KNOWN or (name in HOOKS and _origin(layer).startswith(OF_ONE_CALL)):
            what = "a forward hook" if name in HOOKS else f"a {name} of its own"
            path = next(path for path, each in model.named_modules() if each is module)
            return f"{what} on {path or 'the model'}, of {_origin(layer)}"
    return None


def layers(function: Any) -> Iterator[Any]:
    """A function and those that it wraps by `__wrapped__`."""
    for _ in range(16):
        if function is None:
            return
        yield function
        function = getattr(function, "__wrapped__", None)


def _package(function: Any) -> str:
    return _origin(function).partition(".")[0]


def _origin(function: Any) -> str:
    """The module that defines a function, or the class of a callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    where = getattr(function, "__globals__", None)
    return str(where.get("__name__", "")) if where is not None else str(type(function).__module__)
