"""What steps cost, per model and way to run it, shared by all its calls and kept for later processes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from lade.tuning import costfile
from lade.tuning.cost import StepCost
from lade.wrappers import unwrapped

OFTEN = 512  # steps after which the file is written again


class SharedCost:
    """A `StepCost` that several threads may use."""

    def __init__(self, cost: StepCost) -> None:
        self.cost = cost
        self.unsaved = 0  # steps
        self._lock = threading.Lock()

    def observe(self, tokens: int, context: int, rows: int, seconds: float) -> None:
        with self._lock:
            self.cost.observe(tokens, context, rows, seconds)
            self.unsaved += 1

    def table(self, limit: int, context: int, rows: int) -> Sequence[float]:
        with self._lock:
            return self.cost.table(limit, context, rows)

    def known(self, tokens: int, context: int, rows: int) -> bool:
        with self._lock:
            return self.cost.known(tokens, context, rows)

    def save(self, model: Any) -> None:
        """Write the file where enough was learned since the last time."""
        with self._lock:
            if self.unsaved >= OFTEN:
                self.unsaved = 0
                costfile.store(model, self.cost)


_shared: WeakKeyDictionary[Any, dict[tuple[str, ...], SharedCost]] = WeakKeyDictionary()
_lock = threading.Lock()


def shared_cost(model: Any) -> SharedCost:
    """The costs of this model as it is run now: its device, dtype, attention and torch's threads."""
    model = unwrapped(model)
    way = (model.device, model.dtype, getattr(model.config, "_attn_implementation", None), torch.get_num_threads())
    with _lock:
        ways = _shared.setdefault(model, {})
        key = tuple(map(str, way))
        if key not in ways:
            ways[key] = SharedCost(costfile.load(model))
        return ways[key]
