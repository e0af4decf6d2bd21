"""The target of a call or an engine: static steps where they are wanted and can be, else forwards as they come."""

from __future__ import annotations

from transformers import DynamicCache

from lade.config.settings import FUSED, Settings
from lade.core.stats import Clock
from lade.drafters.factory import most_nodes
from lade.engine.result import returns_cache
from lade.facts.positions import position_limit
from lade.static.chosen import static_target, wants_static
from lade.static.lasting import LastingTarget, lasting_target
from lade.static.target import StaticTarget
from lade.target.cache import DummyLayer, TreeCache
from lade.target.call import Call
from lade.target.masks import layer_kinds
from lade.target.model import HFTarget
from lade.target.stock import window_of
from lade.target.verdicts import packs


def eager_target(call: Call, clock: Clock, flash: bool) -> HFTarget:
    """The target whose forwards are as large as their drafts."""
    config = call.text_config
    cache = TreeCache(call.cache, config)
    packed = packs(call.model, call.input_ids.shape[0])
    return HFTarget(call.model, cache, layer_kinds(config), position_limit(config), clock, packed, flash)


def target_of(call: Call, settings: Settings, eager: HFTarget, other: str | None) -> HFTarget | StaticTarget:
    """The target of a call; its clock notes why it is not static.

    Args:
        other: why the call's drafts or forwards are of another kind, or `None`.
    """
    if not wants_static(call.model, settings.static):
        return eager
    rows, width = call.input_ids.shape
    reason = other or _padding_reason(call) or _layers_reason(call, eager.cache)
    found = reason or static_target(eager, rows, _nodes(eager, settings, rows), width, settings.static == FUSED)
    if isinstance(found, StaticTarget):
        return found
    eager.clock.not_static = found
    return eager


def engine_target(eager: HFTarget, settings: Settings, rows: int, other: str | None) -> HFTarget | LastingTarget:
    """The target of an engine; its clock notes why it is not static.

    Args:
        rows: the most that decode at once.
        other: why there are no static steps, whatever the model, or `None`.
    """
    if not wants_static(eager.model, settings.static):
        return eager
    found = other or lasting_target(eager, rows, _nodes(eager, settings, rows), settings.static == FUSED)
    if isinstance(found, LastingTarget):
        return found
    eager.clock.not_static = found
    return eager


def _nodes(eager: HFTarget, settings: Settings, rows: int) -> int:
    """The most of a step: rows share the budget of mode "auto"."""
    return most_nodes(eager.model, settings) * (1 if settings.mode == "auto" else rows)


def _padding_reason(call: Call) -> str | None:
    """Padding is left out of static slots."""
    mask = call.model_kwargs.get("attention_mask")
    if mask is not None and not bool(mask.all()):
        if bool((mask[:, 1:] < mask[:, :-1]).any()):
            return "a prompt has padding inside"
        if returns_cache(call):
            return "the caller gets the cache of padded prompts"
    return None


def _layers_reason(call: Call, cache: TreeCache) -> str | None:
    """Slots move to layers such as the model's configuration asks for, and back."""
    stock = DynamicCache(config=call.text_config)
    own = [layer.window for layer in cache.own_layers()]
    expected = [window_of(layer) for layer in stock.layers if type(layer) is not DummyLayer]
    return None if own == expected else "the cache has other layers than the model's configuration asks for"
