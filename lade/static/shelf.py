"""Graphs of static steps that outlive a call, one set per model: to capture them takes longer than many a text.

A call borrows them and gives them back, emptied, so no two calls share slots. They are dropped once the model computes
something else: other weights, hooks, adapters or configuration. What is kept holds no reference to the model.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from transformers import DynamicCache

from lade.base.locks import ModelLocks
from lade.facts.fingerprint import forward_state
from lade.facts.vocabulary import readable
from lade.kernels import available
from lade.kernels.blocks import DTYPES
from lade.kernels.launch import attend
from lade.static.buckets import NODES, rows_bucket
from lade.static.graphs import Graphs
from lade.static.slots import StaticSlots
from lade.static.step import SPLITS, StaticStep
from lade.static.target import StaticTarget
from lade.target.empty import empty_target
from lade.target.growth import prefill_texts
from lade.target.patches import patches_of
from lade.target.probe import LONGEST, probed
from lade.target.verdicts import implementation_of

SPARE = 256  # tokens that new slots have room for behind the prompt, beside a step's nodes

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Kept:
    """What is known of a model.

    Attributes:
        state: of the model when it was probed.
        reason: why it has no static steps, or `None`.
        graphs: that nobody has borrowed.
    """

    state: Hashable
    reason: str | None = None
    graphs: Graphs | None = None


_kept: WeakKeyDictionary[Any, _Kept] = WeakKeyDictionary()
_unfused: WeakSet[Any] = WeakSet()  # models of which the log has said that their steps of several rows are not
_locks = ModelLocks()


def borrowed(model: Any, rows: int, tokens: int, fused: bool = False) -> Graphs | str:
    """Graphs with slots for so many rows and tokens, or why the model has none.

    Args:
        fused: compile their steps, if they have one slot; the log says once per model where they have not.
    """
    fused = fused and not _several(model, rows)
    state = forward_state(model), patches_of(model).key, implementation_of(model), rows_bucket(rows) > 1, fused
    with _locks.of(model):
        kept = _kept.get(model)
        if kept is None or kept.state != state:
            graphs, reason = _probed(model, rows, tokens, fused)
            _kept[model] = _Kept(state, reason)
            if reason is not None:
                _log.warning("lade: steps of this model are not static: %s", reason)
            return graphs if reason is None else reason
        if kept.reason is not None:
            return kept.reason
        found, kept.graphs = kept.graphs, None
    if found is None or found.step.slots.count != rows_bucket(rows):
        return _graphs(model, rows, tokens, fused)
    found.belong(model)
    return found


def _several(model: Any, rows: int) -> bool:
    """Whether steps that are to be fused have several slots."""
    if rows_bucket(rows) > 1 and model not in _unfused:
        _unfused.add(model)
        _log.warning("lade: static steps of %d rows are not fused: only those of one row can be", rows)
    return rows_bucket(rows) > 1


def give_back(target: StaticTarget) -> None:
    """Let a later call borrow a target's graphs, whose slots are emptied."""
    for slot in list(target.lengths):
        target.close(slot)
    model = target.eager.model
    target.graphs.belong(None)
    with _locks.of(model):
        if model in _kept:
            _kept[model].graphs = target.graphs


@torch.no_grad()
def _graphs(model: Any, rows: int, tokens: int, fused: bool = False) -> Graphs:
    slots = StaticSlots(shapes_of(model), rows_bucket(rows), tokens + SPARE + NODES[-1], model.device)
    takes_kernel = implementation_of(model) == SPLITS and model.dtype in DTYPES and not fused
    kernel = attend if takes_kernel and available.runs(model.device) else None
    return Graphs(StaticStep(model, slots, readable(model), kernel), fused)


@torch.no_grad()
def shapes_of(model: Any) -> Sequence[Any]:
    """The layers of a cache that holds one token."""
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device), past_key_values=cache, use_cache=True)
    return cache.layers


def _probed(model: Any, rows: int, tokens: int, fused: bool) -> tuple[Graphs, str | None]:
    """Graphs, and why they are not to be used."""
    found: list[StaticTarget] = []

    def made(texts: Sequence[Sequence[int]]) -> StaticTarget:
        eager = empty_target(model)
        found.append(StaticTarget(eager, _graphs(model, rows, tokens, fused)))
        prefill_texts(eager, texts, LONGEST)
        found[0].take(range(len(texts)))
        return found[0]

    reason = probed(model, made, rows)
    graphs = found[0].graphs
    if reason is None and graphs.device.type == "cuda" and not graphs.captures:
        reason = f"they are not captured as a CUDA graph: {graphs.failure}"
    for slot in list(found[0].lengths):
        found[0].close(slot)
    return graphs, reason
