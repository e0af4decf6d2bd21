"""How the requests of a step are chosen for on the device: which of them can share a chooser, and how it is made."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from lade.core.processors import parameters_of
from lade.core.request import Choosing
from lade.static.rounds.warping import Split, Used, Warping, split, used


class Way(NamedTuple):
    """How one request is chosen for.

    Attributes:
        others: the same for requests that may share a step: their processors beside the warping.
    """

    choosing: Choosing
    parts: Split
    others: Hashable

    @classmethod
    def of(cls, choosing: Choosing) -> Way:
        parts = split(list(choosing.processors))
        others = tuple(map(parameters_of, parts.before)), tuple(map(parameters_of, parts.behind))
        return cls(choosing, parts, others)

    @property
    def sampled(self) -> bool:
        return self.choosing.noise is not None

    @property
    def warping(self) -> Warping:
        return self.parts.warping


class Shared(NamedTuple):
    """What a chooser does for all its requests.

    Attributes:
        sampled: whether any of them is; the most likely token is chosen for the others.
    """

    sampled: bool
    used: Used
    others: Hashable


def shared(ways: Sequence[Way]) -> Shared | None:
    """For requests that are chosen for in these ways; `None` where no chooser serves them all."""
    if any(way.others != ways[0].others for way in ways):
        return None
    return Shared(any(way.sampled for way in ways), used(way.warping for way in ways), ways[0].others)
