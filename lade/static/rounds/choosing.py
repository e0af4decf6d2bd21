"""How the tokens of one call are chosen on the device: behind which processors, and with which noise."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import torch

from lade.core.noise import Noise
from lade.core.request import Request
from lade.facts.vocabulary import writable
from lade.static.choices import Chooser, Greedy, NoiseRing, Sampled
from lade.static.rounds.coupled import Coupled
from lade.static.step import StaticStep


class Choosing:
    """For all requests of a call.

    Args:
        requests: all rows of the call.
        processors: of `purity.TEXT_BLIND`.
        noise: for sampling; `None` chooses the most likely token.

    Attributes:
        kind: the same for calls that may share a chooser.
    """

    def __init__(self, requests: Sequence[Request], processors: Any = (), noise: Noise | None = None) -> None:
        self.all, self.processors, self.noise = requests, processors, noise
        self.kind: Hashable = noise is not None, *map(_values, processors)

    def chooser(self, step: StaticStep, indices: int, others: Iterable[Chooser] = ()) -> Chooser:
        """For steps that emit at most so many tokens of a row before the host comes again.

        Args:
            others: choosers of other such steps in the same slots, whose ring is taken over.
        """
        if self.noise is None:
            return Greedy(self.processors)
        rings = [other.ring for other in others if isinstance(other, Sampled)]
        ring = rings[0] if rings else NoiseRing(step.slots, writable(step.model), indices)
        return Sampled(self.processors, ring)

    def coupled(self, step: StaticStep, chooser: Chooser) -> Coupled | None:
        """What drafts may know of the noise."""
        return Coupled(step.slots, chooser.ring) if isinstance(chooser, Sampled) else None

    def begin(self, chooser: Chooser, slot: int) -> None:
        """Another request is in this slot."""
        if isinstance(chooser, Sampled):
            chooser.ring.begin(slot)

    def fill(self, chooser: Chooser, requests: Sequence[Request], left: Sequence[int]) -> None:
        """Have the noise of the next tokens on the device, of requests that may still emit so many."""
        if self.noise is None or not isinstance(chooser, Sampled):
            return
        self.noise.forget(min(request.emitted for request in self.all if not request.finished))
        for request, tokens in zip(requests, left, strict=True):
            chooser.ring.fill(self.noise, request.slot, request.row, request.emitted, tokens)


def _values(processor: Any) -> Hashable:
    """A processor's type and parameters."""
    own = [(name, _value(value)) for name, value in sorted(vars(processor).items())]
    return type(processor), *own


def _value(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), str(value.tolist())
    return value if isinstance(value, Hashable) else repr(value)
