"""Static steps for an engine, which outlives its requests.

Graphs are borrowed while any request has a slot, and given back when the last one has left: the model may be changed
between, and calls may use them then.
"""

from __future__ import annotations

from collections.abc import Sequence

from lade.static.chosen import static_target
from lade.static.graphs import Graphs
from lade.static.shelf import give_back
from lade.static.target import StaticTarget
from lade.target.imageprefixes import ImagePrefixes
from lade.target.model import HFTarget
from lade.target.owncache import OwnCache
from lade.target.prefixes import PrefixCache

Store = PrefixCache | ImagePrefixes | OwnCache


class LastingTarget(StaticTarget):
    """A target whose forwards of drafts are static steps wherever the model's can be at the time.

    Args:
        eager: reads prompts, and computes all where steps cannot be static; no slot is open.
        graphs: borrowed, for so many rows; given back at once.
        rows: the most that decode at once.
        nodes: the most of a step, as far as it is known.
        fused: compile steps of one row.
    """

    def __init__(self, eager: HFTarget, graphs: Graphs, rows: int, nodes: int, fused: bool) -> None:
        super().__init__(eager, graphs)
        self._rows, self._nodes, self._fused, self._static = rows, nodes, fused, True
        give_back(self)

    @property
    def _idle(self) -> bool:
        return not (self.lengths or self.eager.positions)

    def open(self, slot: int, tokens: int, most: int) -> None:
        """Start an empty sequence; the first one finds the model as it is now."""
        if self._idle:
            found = static_target(self.eager, self._rows, self._nodes, tokens, self._fused)
            self._static = isinstance(found, StaticTarget)
            self.clock.not_static = None if isinstance(found, StaticTarget) else found
            self.graphs = found.graphs if isinstance(found, StaticTarget) else self.graphs
        super().open(slot, tokens, most)

    def close(self, slot: int) -> None:
        """Free a slot."""
        super().close(slot)
        if self._idle and self._static:
            give_back(self)

    def take(self, slots: Sequence[int]) -> None:
        """As `StaticTarget.take`; slots stay where they are while steps cannot be static."""
        if self._static:
            super().take(slots)


class LastingPrefixes:
    """A place where prompts begin and texts go, which reads them from the target that reads prompts.

    Args:
        tenants: whether it takes texts of tenants alone.
    """

    def __init__(self, target: StaticTarget, store: Store, tenants: bool) -> None:
        self._target, self._store, self._tenants = target, store, tenants

    def restore(self, slot: int, prompt: Sequence[int], tenant: str | None) -> int:
        """As the store."""
        return self._store.restore(slot, prompt, tenant)

    def keep(self, slot: int, text: Sequence[int], tenant: str | None) -> None:
        """As the store, once the slot has moved back."""
        if self._tenants and tenant is None:
            return
        if slot in self._target.lengths:
            self._target.give_back([slot])
        self._store.keep(slot, text, tenant)


def lasting_target(eager: HFTarget, rows: int, nodes: int, fused: bool = False) -> LastingTarget | str:
    """The target of an engine, or why its steps are not static (`static_target`)."""
    found = static_target(eager, rows, nodes, 0, fused)
    return LastingTarget(eager, found.graphs, rows, nodes, fused) if isinstance(found, StaticTarget) else found


def readable(store: Store, target: HFTarget | LastingTarget) -> Store | LastingPrefixes:
    """A store that may read the slots of a target wherever they are."""
    if not isinstance(target, LastingTarget):
        return store
    return LastingPrefixes(target, store, tenants=not isinstance(store, OwnCache))
