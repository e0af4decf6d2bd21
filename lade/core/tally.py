"""Counts of proposed, verified and accepted draft tokens. Knows trees and verdicts; no time and no model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING

from lade.core.tree import Draft

if TYPE_CHECKING:
    from lade.core.request import Verdict

TOGETHER = 256  # names that wait to be counted


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Counts over all steps of one request or several.

    Attributes:
        steps: forwards.
        proposed: source -> draft tokens, each a node of a tree.
        verified: source -> draft tokens whose parent was accepted, so that the model's choice was compared with them.
        accepted: source -> draft tokens that the model chose.
        verified_by_depth: distance from the root -> steps that compared the model's choice there with draft tokens.
        accepted_by_depth: distance from the root -> steps that accepted a draft token there.
        accepted_lengths: tokens that a step emitted, the model's own included -> number of steps.
    """

    steps: int
    proposed: dict[str, int]
    verified: dict[str, int]
    accepted: dict[str, int]
    verified_by_depth: dict[int, int]
    accepted_by_depth: dict[int, int]
    accepted_lengths: dict[int, int]


class Names:
    """Counts names, many at a time: a counter takes a microsecond before it counts the first."""

    __slots__ = ("_counted", "_waiting")

    def __init__(self) -> None:
        self._counted: Counter[str] = Counter()
        self._waiting: list[str] = []

    def add(self, names: Iterable[str]) -> None:
        self._waiting += names
        if len(self._waiting) > TOGETHER:
            self._counted.update(self._waiting)
            self._waiting = []

    @property
    def counts(self) -> Counter[str]:
        """A copy."""
        return self._counted + Counter(self._waiting)

    def update(self, other: Names) -> None:
        """Add what another one has counted."""
        self._counted.update(other.counts)


@dataclass(slots=True)
class Tally:
    """Counts of one request. A step adds to as few as possible; `acceptance` derives the others."""

    lengths: Counter[int] = field(default_factory=Counter)  # tokens that a step emitted
    missed: Counter[int] = field(default_factory=Counter)  # depths at which all draft tokens were rejected
    _proposed: Names = field(default_factory=Names)
    _verified: Names = field(default_factory=Names)
    _accepted: Names = field(default_factory=Names)

    @property
    def proposed(self) -> Counter[str]:
        """By source, as are the next two (`Acceptance`); each a copy."""
        return self._proposed.counts

    @property
    def verified(self) -> Counter[str]:
        return self._verified.counts

    @property
    def accepted(self) -> Counter[str]:
        return self._accepted.counts

    def add(self, draft: Draft, verdict: Verdict) -> None:
        path = verdict.path
        self.lengths[len(path)] += 1
        if len(draft) == 1:  # no draft: a step costs no more than one of plain decoding
            return
        sources, parents = draft.sources, draft.parents
        self._proposed.add(sources[1:])
        self._verified.add(compress(sources, map(path.__contains__, parents)))
        self._accepted.add(map(sources.__getitem__, path[1:]))
        if path[-1] in parents:
            self.missed[len(path)] += 1

    def acceptance(self) -> Acceptance:
        longest = max(self.lengths, default=1)
        accepted = {
            depth: sum(steps for length, steps in self.lengths.items() if length > depth) for depth in range(1, longest)
        }
        return Acceptance(
            steps=self.lengths.total(),
            proposed=dict(self.proposed),
            verified=dict(self.verified),
            accepted=dict(self.accepted),
            verified_by_depth=dict(sorted((Counter(accepted) + self.missed).items())),
            accepted_by_depth=accepted,
            accepted_lengths=dict(sorted(self.lengths.items())),
        )


def together(tallies: Iterable[Tally]) -> Tally:
    """The sum of several tallies."""
    whole = Tally()
    for tally in tallies:
        for name in Tally.__slots__:
            getattr(whole, name).update(getattr(tally, name))
    return whole
