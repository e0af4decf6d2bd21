"""From settings to a drafter: one row per mode. Knows models only as keys of warm tables and pools."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from lade.config.settings import MOST_TOKENS, Settings
from lade.core.drafter import Drafter
from lade.drafters import compiling
from lade.drafters.blend import BlendDrafter
from lade.drafters.jacobi import JacobiDrafter
from lade.facts.vocabulary import readable
from lade.memory.backoff import backoff
from lade.memory.corpora import NO_CORPUS
from lade.memory.corpusfile import load_corpus
from lade.memory.hashing import Array
from lade.memory.pools import Pool, fresh_pool, shared_pool
from lade.memory.warm import warming as warm
from lade.pace.bucketed import Bucketed
from lade.pace.costfile import FUSED, PLAIN, STATIC
from lade.pace.pace import Pace, WholeBudget
from lade.pace.shared import SharedCost, shared_cost
from lade.pace.sharing import PACKED, PADDED
from lade.static.buckets import NODES
from lade.target.verdicts import fuses

HOST_BUDGET, ACCELERATOR_BUDGET = 48, 128  # most nodes of a tree if no budget is given


def pace_for(model: Any, settings: Settings, companion: Any = None, packed: bool = False) -> WholeBudget:
    """The object that chooses the sizes of trees, up to the budget; all of it if the settings do not adapt.

    Args:
        companion: a second model that runs in every step.
        packed: whether forwards carry the rows' trees behind one another, without padding.
    """
    sharing = PACKED if packed else PADDED
    return adapted(model, settings, lambda budget: Pace(cost_for(model, companion, packed), budget, sharing=sharing))


def cost_for(model: Any, companion: Any = None, packed: bool = False) -> SharedCost:
    """Costs of steps as they are computed now; arguments as of `pace_for`."""
    return shared_cost(model, companion, FUSED if packed and fuses(model) else PLAIN)


def static_pace(model: Any, settings: Settings) -> WholeBudget:
    """The same where forwards of drafts are static steps, which come in few sizes."""

    def pace(budget: int) -> Pace:
        return Pace(shared_cost(model, steps=STATIC), budget, sharing=Bucketed(NODES, budget))

    return adapted(model, settings, pace)


def adapted(model: Any, settings: Settings, pace: Callable[[int], Pace]) -> WholeBudget:
    """The pace of the budget; all of the budget in every step if the settings do not adapt, or it is one token."""
    budget = budget_of(model, settings)
    return pace(budget) if settings.adapt and budget > 1 else WholeBudget(budget)


def most_nodes(model: Any, settings: Settings) -> int:
    """A bound on the nodes of a row's tree, the root included."""
    if settings.mode == "auto":
        return budget_of(model, settings)
    guesses = MOST_TOKENS if settings.guesses < 0 else settings.guesses
    return min(settings.budget or MOST_TOKENS, (settings.window + guesses) * (settings.ngram - 1) + 1)


def budget_of(model: Any, settings: Settings) -> int:
    """The most nodes of a tree in mode "auto"."""
    return settings.budget or (HOST_BUDGET if model.device.type == "cpu" else ACCELERATOR_BUDGET)


def lookahead(model: Any, settings: Settings, companion: Any, packed: bool, pace: WholeBudget | None = None) -> Drafter:
    return JacobiDrafter(settings)


def auto(model: Any, settings: Settings, companion: Any, packed: bool, pace: WholeBudget | None = None) -> Drafter:
    pace = pace or pace_for(model, settings, companion, packed)
    table = warm.cached(model) if "warm" in settings.sources and pace.limit > 1 else None
    pool = partial(_pool_of, model, settings)
    prepared, digest = (None, None) if table is None else (partial(backoff, table), table.digest)
    corpus = corpus_for(settings, readable(model))
    return BlendDrafter(settings, pace.limit, prepared, pool, pace, warm_table=digest, corpus=corpus)


def corpus_for(settings: Settings, vocabulary: int) -> Array:
    """The corpus of the settings, an empty one where they have none; errors as of `load_corpus`."""
    if settings.corpus is None or "corpus" not in settings.sources:
        return NO_CORPUS
    return load_corpus(settings.corpus, vocabulary).ints


def _pool_of(model: Any, settings: Settings, tenant: str | None) -> Pool:
    """The pool of a request's tenant, or of the settings' one; without any, a fresh one.

    With the first of them drafts begin, and the machine code that makes them is loaded. Before, a prompt was read: what
    both take at their most would add up.
    """
    compiling.begin()
    tenant = tenant or settings.tenant
    return fresh_pool(settings.pool_size) if tenant is None else shared_pool(model, tenant, settings.pool_size)


MODES: dict[str, Callable[[Any, Settings, Any, bool, WholeBudget | None], Drafter]] = {
    "auto": auto,
    "lookahead": lookahead,
}


def drafter_for(
    model: Any, settings: Settings, companion: Any = None, packed: bool = False, pace: WholeBudget | None = None
) -> Drafter:
    """The drafter of a call or an engine.

    Args:
        companion: a second model that runs in every step; costs are of both.
        packed: whether forwards carry the rows' trees behind one another, without padding.
        pace: chooses sizes in mode "auto"; `None` for that of this process (`pace_for`).
    """
    return MODES[settings.mode](model, settings, companion, packed, pace)
