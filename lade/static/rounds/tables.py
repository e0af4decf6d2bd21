"""What the loops of one step's slots share on the device: what is known of the request in each slot."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import LogitsProcessorList

from lade.core.request import Request
from lade.facts.vocabulary import readable, writable
from lade.memory.backoff import Backoff
from lade.static.choices import Chooser, Greedy, NoiseRing, Sampled
from lade.static.rounds.choosing import Shared, Way
from lade.static.rounds.coupled import Coupled
from lade.static.rounds.ends import Ends
from lade.static.rounds.recall import Recall
from lade.static.rounds.warmarrays import WarmArrays
from lade.static.rounds.warping import SlotWarping
from lade.static.step import StaticStep


class Tables:
    """For the slots of one step. It holds no model.

    Args:
        indices: of emitted tokens whose noise is at hand.

    Attributes:
        recall: recycled predictions of each text.
        ends: where each text ends.
    """

    def __init__(self, step: StaticStep, indices: int) -> None:
        slots, device = step.slots, step.slots.lengths.device
        self.recall = Recall(slots.count + 1, readable(step.model), device)
        self.ends = Ends(step.model, slots)
        self._slots, self._vocabulary, self._indices = slots, writable(step.model), indices
        self._warping = SlotWarping(slots.count + 1, device)
        self._sampled = torch.zeros(slots.count + 1, dtype=torch.bool, device=device)
        self._ring: NoiseRing | None = None
        self._warm: tuple[str | None, WarmArrays] | None = None

    def begin(self, request: Request, way: Way) -> None:
        """Another request is in its slot, where the device has seen none of its text."""
        slot = request.slot
        self.recall.begin(slot, request.tokens)
        self.ends.begin(slot, way.choosing.ends)
        self._warping.begin(slot, way.warping)
        self._sampled[slot] = way.sampled
        if self._ring is not None:
            self._ring.begin(slot)

    def chooser(self, shared: Shared, way: Way) -> Chooser:
        """For requests that share this, one of which is chosen for in this way."""
        before, _, behind = way.parts
        processors = LogitsProcessorList([*before, *self._warping.processors(shared.used), *behind])
        if not shared.sampled:
            return Greedy(processors)
        if self._ring is None:
            self._ring = NoiseRing(self._slots, self._vocabulary, self._indices)
        return Sampled(processors, self._ring, self._sampled)

    def coupled(self, chooser: Chooser) -> Coupled | None:
        """What drafts may know of the noise."""
        return Coupled(self._slots, chooser.ring) if isinstance(chooser, Sampled) else None

    def fill(self, request: Request, way: Way, left: int) -> None:
        """Have the noise of a request's next tokens on the device, of which it may still emit so many."""
        noise = way.choosing.noise
        if noise is not None and self._ring is not None:
            noise.forget(min(other.emitted for other in way.choosing.all if not other.finished))
            self._ring.fill(noise, request.slot, request.row, request.emitted, left)

    def warm(self, table: str | None, known: Callable[[float], Backoff]) -> WarmArrays:
        """A warm table on the device, which gives its predictions at an inverse temperature."""
        if self._warm is None or self._warm[0] != table:
            self._warm = table, WarmArrays(known(1.0), self._slots.inverse_temperatures)
        return self._warm[1]
