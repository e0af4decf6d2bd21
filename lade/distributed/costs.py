"""Costs of steps that several ranks share: learned alike on all ranks, stored by rank 0."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from lade.base.wrappers import unwrapped
from lade.distributed.group import Group
from lade.pace import costfile
from lade.pace.cost import Costs, StepCost
from lade.pace.shared import SharedCost
from lade.target.verdicts import fuses


def costs_of(group: Group, model: Any) -> SharedCost:
    """The costs of this model's steps in a group; at first those that an earlier run on rank 0 stored. Collective."""
    model = unwrapped(model)
    if model not in group.costs:
        steps = costfile.FUSED if fuses(model) else costfile.PLAIN
        logs = costfile.load(model, group.size, steps).logs() if group.rank == 0 else {}
        earlier = _decoded(group.broadcast_bytes(_encoded(logs)))
        keep: Callable[[Costs], None] = costfile.keeper(model, group.size, steps) if group.rank == 0 else _forget
        group.costs[model] = SharedCost(StepCost(earlier), keep)
    return group.costs[model]


def _encoded(logs: Costs) -> bytes:
    return json.dumps([[*key, list(values)] for key, values in logs.items()]).encode()


def _decoded(data: bytes) -> Costs:
    return {(rows, context): values for rows, context, values in json.loads(data)}


def _forget(logs: Costs) -> None:
    """Stores nothing."""
