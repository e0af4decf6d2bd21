"""The steps of one call, timed: what each one cost goes to the model's costs, what the next may carry comes back.

A step lasts from one draft to the next, so a user's slow streamer counts too. Steps that look for no drafts, since none
were worth their cost, are not timed: they are to take no longer than steps of plain decoding, and the looks between
them tell what one token costs. Knows no tree, no tokens and no model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lade.pace.controller import COLD, Controller
from lade.pace.shared import SharedCost

TOLD = 4  # of so many steps one tells what it took, where that is known: learning takes time too
REMEMBERED = 0.9  # share of the past in the moving average of what looking for drafts takes


@dataclass(slots=True)
class _Step:
    """One step as the clock saw it, in seconds; what it carried is per row."""

    began: float
    looks: bool
    rests: bool  # whether it is not timed
    nodes: int = 1
    context: int = 1
    rows: int = 1
    drafted: float = 0.0  # when the draft was made
    verified: float = 0.0  # when it was known which of its tokens are right


class WholeBudget:
    """No pace: every step takes as much as it may.

    Attributes:
        adapts: whether sizes are chosen at all.
    """

    adapts = False

    def __init__(self, limit: int) -> None:
        self.limit = limit

    @property
    def fruitless(self) -> bool:
        """Whether the last looks found no draft worth its cost, so that most steps look for none."""
        return False

    def begin(self, context: int, rows: int) -> int:
        return self.limit

    def choose(self, rows: Sequence[Sequence[float]], context: int, repeats: bool = False) -> int:
        return max(map(len, rows))

    def carry(self, nodes: int, context: int, rows: int) -> None:
        pass

    def verified(self) -> None:
        pass

    def learn(self, expected: float, came: float) -> None:
        pass

    def end(self) -> Mapping[str, int]:
        return {}


class Pace(WholeBudget):
    """What the drafter asks before every step.

    Args:
        shared: what steps of this model cost.
        limit: the most nodes of a row's tree, the root included.
        now: a clock in seconds.
    """

    adapts = True

    def __init__(self, shared: SharedCost, limit: int, now: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(limit)
        self._shared, self._now = shared, now
        self._controller = Controller(shared, limit)
        self._step: _Step | None = None  # the one that runs
        self._ended = 0  # steps that were timed
        self._looking = 0.0  # what looking for drafts takes, over what a step of one token takes without

    @property
    def fruitless(self) -> bool:
        return self._controller.fruitless

    def begin(self, context: int, rows: int) -> int:
        """A step ended and the next begins. Returns the nodes worth growing per row; 1: `choose` need not be asked."""
        now = self._now()
        if self._step is not None and not self._step.rests:
            self._end(self._step, now)
        room = self._controller.room(context, rows, self._looking)
        self._step = _Step(now, looks=room > 1, rests=self._controller.rests)
        return room

    def choose(self, rows: Sequence[Sequence[float]], context: int, repeats: bool = False) -> int:
        """Nodes per row of this step (`Controller.choose`)."""
        return self._controller.choose(rows, context, repeats)

    def carry(self, nodes: int, context: int, rows: int) -> None:
        """The draft is made; what the step carries in the end, padding included."""
        assert self._step is not None
        step = self._step
        step.nodes, step.context, step.rows, step.drafted = nodes, context, rows, self._now()

    def verified(self) -> None:
        """The model has chosen; what follows until the next step is learning."""
        assert self._step is not None
        self._step.verified = self._now()

    def learn(self, expected: float, came: float) -> None:
        """What the model's choice says about the drafts (`Controller.learn`)."""
        self._controller.learn(expected, came)

    def end(self) -> Mapping[str, int]:
        """The call is over: keep what was learned. Returns why steps carried what they did."""
        self._shared.save()
        return self._controller.decisions

    def _end(self, step: _Step, now: float) -> None:
        self._ended += 1
        if self._ended <= COLD:
            return
        seconds = now - step.began
        if step.nodes == 1:  # one token alone takes no draft and teaches nothing, so that is not what it costs
            looking = step.drafted - step.began + now - step.verified
            seconds -= looking
            if step.looks:
                self._looking = REMEMBERED * self._looking + (1 - REMEMBERED) * looking / max(seconds, 1e-9)
        kind = step.nodes * step.rows, step.context, step.rows
        if not self._ended % TOLD or not self._shared.known(*kind):
            self._shared.observe(*kind, seconds)
