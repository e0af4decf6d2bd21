"""Whether the device drafts in the steps of a call or an engine."""

from __future__ import annotations

from typing import Any, TypeGuard

from lade.config.settings import Settings
from lade.core.drafter import Drafter
from lade.drafters.blend import BlendDrafter
from lade.drafters.factory import budget_of
from lade.engine.protocols import Target
from lade.pace.turns import Turns
from lade.static.rounds.drafts import DeviceDrafts
from lade.static.target import StaticTarget


def drafts_on_device(target: Target, settings: Settings) -> TypeGuard[StaticTarget]:
    """Whether the device may draft; tokens are chosen as there then, after all nodes of a step at once."""
    return settings.device_drafts and isinstance(target, StaticTarget)


def rounds_of(model: Any, settings: Settings, target: Target, drafter: Drafter) -> DeviceDrafts | None:
    """Steps that the device drafts, for requests that let it; `None`: there are none."""
    if not (drafts_on_device(target, settings) and isinstance(drafter, BlendDrafter)):
        return None
    turns = Turns if settings.adapt else None
    return DeviceDrafts(target, budget_of(model, settings), drafter.warm, drafter.warm_table, turns)
