"""The steps of one call, timed: the time of each goes to the model's costs, the next one's size comes back.

A step lasts from one draft to the next, so a user's slow streamer counts too. Steps that look for no drafts, after
fruitless looks, are not timed: they must take no longer than steps of plain decoding, and the looks between them give
the cost of one token. Knows no tree, no tokens and no model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lade.pace.controller import Controller
from lade.pace.policy import PACE, PacePolicy
from lade.pace.shared import SharedCost


@dataclass(slots=True)
class _Step:
    """One step: its times in seconds by the clock, and what it carried."""

    began: float
    looks: bool  # for drafts
    rests: bool  # looks for none after fruitless looks, and is not timed
    nodes: int = 1  # per row
    context: int = 1
    rows: int = 1
    drafted: float = 0.0
    verified: float = 0.0


class WholeBudget:
    """Every step takes the whole budget; the interface of `Pace`.

    Args:
        limit: the most nodes of a row's tree, the root included.

    Attributes:
        adapts: whether sizes are chosen.
    """

    adapts = False

    def __init__(self, limit: int) -> None:
        self.limit = limit

    @property
    def fruitless(self) -> bool:
        """Whether the last looks found nothing worth its cost, so that most steps look for no drafts."""
        return False

    def begin(self, context: int, rows: int) -> int:
        return self.limit

    def choose(self, rows: Sequence[Sequence[float]], context: int, repeats: bool = False) -> int:
        return max(map(len, rows))

    def carry(self, nodes: int, context: int, rows: int) -> None:
        pass

    def verified(self) -> None:
        pass

    def learn(self, expected: float, accepted: float) -> None:
        pass

    def end(self) -> Mapping[str, int]:
        return {}


class Pace(WholeBudget):
    """Chooses the size of every step by what steps cost and what drafts bring.

    Args:
        shared: costs of this model's steps.
        limit: the most nodes of a row's tree, the root included.
        now: a clock in seconds.
    """

    adapts = True

    def __init__(
        self,
        shared: SharedCost,
        limit: int,
        now: Callable[[], float] = time.perf_counter,
        policy: PacePolicy = PACE,
    ) -> None:
        super().__init__(limit)
        self._shared, self._now, self._timing = shared, now, policy.timing
        self._controller = Controller(shared, limit, policy)
        self._step: _Step | None = None  # the running one
        self._ended = 0  # steps that did not rest
        self._overhead = 0.0  # moving average: time of a look for drafts, over that of a step of one token without

    @property
    def fruitless(self) -> bool:
        return self._controller.fruitless

    def begin(self, context: int, rows: int) -> int:
        """End the running step and begin the next. Returns `Controller.room`: if 1, `choose` is not to be asked."""
        now = self._now()
        if self._step is not None and not self._step.rests:
            self._end(self._step, now)
        room = self._controller.room(context, rows, self._overhead)
        self._step = _Step(now, looks=room > 1, rests=self._controller.rests)
        return room

    def choose(self, rows: Sequence[Sequence[float]], context: int, repeats: bool = False) -> int:
        """Nodes per row of this step (`Controller.choose`)."""
        return self._controller.choose(rows, context, repeats)

    def carry(self, nodes: int, context: int, rows: int) -> None:
        """The draft is made: nodes per row that the step carries, padding included."""
        assert self._step is not None
        step = self._step
        step.nodes, step.context, step.rows, step.drafted = nodes, context, rows, self._now()

    def verified(self) -> None:
        """The model has chosen; the rest of the step is learning."""
        assert self._step is not None
        self._step.verified = self._now()

    def learn(self, expected: float, accepted: float) -> None:
        """The model's choice at one token for which drafts were found (`Controller.learn`)."""
        self._controller.learn(expected, accepted)

    def end(self) -> Mapping[str, int]:
        """End the call and store the costs. Returns `Controller.decisions`."""
        self._shared.save()
        return self._controller.decisions

    def _end(self, step: _Step, now: float) -> None:
        timing = self._timing
        self._ended += 1
        if self._ended <= timing.warm_up:
            return
        seconds = now - step.began
        if step.nodes == 1:  # its cost is that of plain decoding's step: without drafting and learning
            overhead = step.drafted - step.began + now - step.verified
            seconds -= overhead
            if step.looks:
                new = (1 - timing.smoothing) * overhead / max(seconds, 1e-9)
                self._overhead = timing.smoothing * self._overhead + new
        kind = step.nodes * step.rows, step.context, step.rows
        if not self._ended % timing.every or not self._shared.known(*kind):
            self._shared.observe(*kind, seconds)
