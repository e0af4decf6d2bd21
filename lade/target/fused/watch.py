"""Whether modules are still what they were, without calling them.

What computes in place of modules looks before each forward: a hook, a patched method, another weight or module of the
user's ends it. A look takes 0.2 µs per module, but several times as long behind a forward that has read more weights
than the processor's caches hold: every module lies in other memory. So where nothing but lade has run since the last
forward, one share of the modules is looked at, and all of them where a hook was registered meanwhile: another thread's
change is seen soon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, repeat
from operator import contains, is_, itemgetter
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle

from lade.base.bits import addresses
from lade.target.patches import CALLED, HOOKS

PARTS = ("_modules", "_parameters")
COUNTS = "__counts__"
SHARES = 16  # forwards, after which all modules were looked at again
_trained = itemgetter("training")

Function = TypeVar("Function", bound=Callable[..., Any])


class Watch:
    """Modules in evaluation mode without hooks and patches, and their children and parameters.

    Args:
        modules: that are unpatched (`is_unpatched`).
        tensors: whose memory is read as it lies.
    """

    def __init__(self, modules: Sequence[nn.Module], tensors: Sequence[torch.Tensor]) -> None:
        self._handles = RemovableHandle.next_id
        self._shares = [_Share(modules[part], tensors[part]) for part in map(part_of, range(SHARES))]

    def holds(self, share: int | None = None) -> bool:
        """Whether all of them are as they were, and none is trained.

        Args:
            share: the one that is looked at, unless there is a new hook anywhere; `None` for all.
        """
        handles = RemovableHandle.next_id  # of every hook that is registered, on whatever module
        if share is not None and handles == self._handles:
            return self._shares[share].holds()
        found = all(each.holds() for each in self._shares)
        if found:
            self._handles = handles
        return found


def part_of(share: int | None) -> slice:
    """Which of some things belong to a share; `None` for all."""
    return slice(share, None, None if share is None else SHARES)


class _Share:
    """Some of the modules and tensors of a `Watch`."""

    def __init__(self, modules: Sequence[nn.Module], tensors: Sequence[torch.Tensor]) -> None:
        self._modules, self._tensors, self._where = modules, tensors, addresses(tensors)
        self._kinds: list[Any] = [*map(type, modules)]
        self._own = [module.__dict__ for module in modules]
        self._hooks = [own[name] for own in self._own for name in HOOKS] + global_hooks()
        # What an empty one gets, no stock function reads.
        self._parts: list[dict[str, Any]] = [own[name] for own in self._own for name in PARTS if own[name]]
        self._known = [*chain.from_iterable(map(dict.values, self._parts))]
        self._forwards: list[tuple[Any, Any]] = [(kind, kind.forward) for kind in set(self._kinds)]

    def holds(self) -> bool:
        """Whether all of them are as they were, and none is trained."""
        if any(self._hooks) or any(map(_trained, self._own)) or any(map(contains, self._own, repeat("forward"))):
            return False
        if not all(map(is_, map(type, self._modules), self._kinds)):
            return False
        now = [*chain.from_iterable(map(dict.values, self._parts))]
        if len(now) != len(self._known) or not all(map(is_, now, self._known)):
            return False
        lies = addresses(self._tensors) == self._where
        return lies and all(kind.forward is forward for kind, forward in self._forwards)


def is_unpatched(module: nn.Module) -> bool:
    """Whether a call of a module runs its class's `forward` and nothing else, but for hooks of all modules."""
    own = module.__dict__
    return CALLED.isdisjoint(own) and not any(own[name] for name in HOOKS)


def counting(hook: Function) -> Function:
    """Mark a hook of a whole model that only counts forwards, and may be called with `input_ids` alone."""
    setattr(hook, COUNTS, True)
    return hook


def is_only_counted(model: nn.Module) -> bool:
    """Whether a call of a model runs its class's `forward` and nothing else but hooks that count."""
    own = model.__dict__
    return CALLED.isdisjoint(own) and all(hasattr(hook, COUNTS) for name in HOOKS for hook in own[name].values())


def global_hooks() -> list[dict[int, Any]]:
    """Those of all modules."""
    return [getattr(torch_module, f"_global{name}") for name in HOOKS]
