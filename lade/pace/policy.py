"""All tuned values of the pace of one call, one policy per concern."""

from __future__ import annotations

from dataclasses import dataclass

from lade.pace.belief import BELIEF, BeliefPolicy
from lade.pace.overhead import OVERHEAD, OverheadPolicy
from lade.pace.rest import REST, RestPolicy
from lade.pace.size import SIZE, SizePolicy
from lade.pace.timing import TIMING, TimingPolicy


@dataclass(frozen=True, slots=True)
class PacePolicy:
    """The policies of one call.

    Attributes:
        size: how large trees are.
        rest: when steps look for no drafts.
        belief: how far draft probabilities are believed.
        timing: which steps are timed.
        overhead: how the time of looks for drafts is followed.
    """

    size: SizePolicy = SIZE
    rest: RestPolicy = REST
    belief: BeliefPolicy = BELIEF
    timing: TimingPolicy = TIMING
    overhead: OverheadPolicy = OVERHEAD


PACE = PacePolicy()
