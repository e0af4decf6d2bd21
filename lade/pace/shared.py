"""Costs of steps per model and way to run it, shared by all its calls and stored for later processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from lade.base.locks import ModelLocks, fork_safe_lock
from lade.base.wrappers import unwrapped
from lade.facts.fingerprint import configuration_key
from lade.pace import costfile
from lade.pace.cost import Costs, StepCost
from lade.weights.packing import packing_of

FIRST_SAVE, LATER_SAVES = 64, 512
"""Steps after which the file is written: the first time, so that the next run of a short program starts from it too,
and later."""


class SharedCost:
    """A `StepCost` that several threads may use.

    Args:
        keep: stores what `StepCost.logs` gives for later processes.
    """

    def __init__(self, cost: StepCost, keep: Callable[[Costs], None]) -> None:
        self.cost = cost
        self._keep = keep
        self._unsaved, self._enough = 0, FIRST_SAVE  # steps
        self._lock = fork_safe_lock()

    def observe(self, tokens: int, context: int, rows: int, seconds: float, first: bool = False) -> None:
        with self._lock:
            self.cost.observe(tokens, context, rows, seconds, first)
            self._unsaved += 1

    def table(self, limit: int, context: int, rows: int) -> Sequence[float]:
        with self._lock:
            return self.cost.table(limit, context, rows)

    def known(self, tokens: int, context: int, rows: int) -> bool:
        with self._lock:
            return self.cost.known(tokens, context, rows)

    def save(self) -> None:
        """Write the file if enough steps were timed since the last time. Steps of other calls do not wait for it."""
        with self._lock:
            if self._unsaved < self._enough:
                return
            self._unsaved, self._enough = 0, LATER_SAVES
            logs = self.cost.logs()
        self._keep(logs)


_shared: WeakKeyDictionary[Any, dict[tuple[str, ...], SharedCost]] = WeakKeyDictionary()
_locks = ModelLocks()


def shared_cost(model: Any, companion: Any = None, steps: str = costfile.PLAIN) -> SharedCost:
    """The costs of this model as it is run now: on its device, with its dtype, attention and number of torch threads.

    Args:
        steps: how they are computed (`lade.pace.costfile`).
        companion: a second model that every step runs too. The costs of both together start from those of the model
            alone and are not stored.
    """
    model = unwrapped(model)
    way = (*_way(model), torch.get_num_threads(), steps)
    if companion is not None:
        companion = unwrapped(companion)
        way = (*way, *_way(companion), configuration_key(companion))
    with _locks.of(model):
        ways = _shared.setdefault(model, {})
        key = tuple(map(str, way))
        if key not in ways:
            keep = costfile.keeper(model, steps=steps) if companion is None else _forget
            ways[key] = SharedCost(costfile.load(model, steps=steps), keep)
        return ways[key]


def _way(model: Any) -> tuple[Any, ...]:
    implementation = getattr(model.config, "_attn_implementation", None)
    return model.device, model.dtype, implementation, packing_of(model)


def _forget(logs: Costs) -> None:
    """Stores nothing."""
