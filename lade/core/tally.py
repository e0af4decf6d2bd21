"""What became of the drafts of one request, counted step by step. Knows trees and verdicts; no time and no model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from lade.core.request import Verdict
from lade.core.tree import Draft


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A tally at its end, of one request or of several.

    Attributes:
        steps: forwards that it took part in.
        proposed: draft tokens per source, each one token of the budget.
        verified: those of them whose parent was accepted, so that the model's choice was compared with them.
        accepted: those that it chose.
        verified_by_depth: distance from the root -> steps that compared the model's choice there with drafted tokens.
        accepted_by_depth: those of them where it was one of these tokens.
        accepted_lengths: tokens emitted by a step, the model's own included -> how many steps.
    """

    steps: int
    proposed: dict[str, int]
    verified: dict[str, int]
    accepted: dict[str, int]
    verified_by_depth: dict[int, int]
    accepted_by_depth: dict[int, int]
    accepted_lengths: dict[int, int]


@dataclass(slots=True)
class Tally:
    """Counts; a step adds to few of them, since it stands between two forwards."""

    proposed: Counter[str] = field(default_factory=Counter)
    verified: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)  # tokens emitted by a step
    missed: Counter[int] = field(default_factory=Counter)  # depths whose drafted tokens the model did not choose

    def add(self, draft: Draft, verdict: Verdict) -> None:
        path = verdict.path
        self.lengths[len(path)] += 1
        if len(draft) == 1:  # nothing was drafted: this step is to take no longer than one of plain decoding
            return
        sources, on_path = draft.sources, set(path)
        compared = [node for node, parent in enumerate(draft.parents) if parent in on_path]
        self.proposed.update(sources[1:])
        self.verified.update([sources[node] for node in compared])
        self.accepted.update([sources[node] for node in path[1:]])
        if path[-1] in draft.parents:
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
    """The sum of several."""
    whole = Tally()
    for tally in tallies:
        for name in Tally.__slots__:
            getattr(whole, name).update(getattr(tally, name))
    return whole
