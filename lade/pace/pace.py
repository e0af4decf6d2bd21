"""The steps of one call, timed: the time of each goes to the model's costs, the next one's size comes back.

A step lasts from its draft to the end of its learning, so a user's slow streamer counts too, but not what an engine's
caller does between two steps. What any look for drafts takes is known apart (`Overhead`). Steps that look for none,
after fruitless looks, are not timed: they must take no longer than steps of plain decoding, and the looks between them
give the cost of one token. The first step after requests have joined or left is slower: 8 rows of an 8M model took 1.4
times as long in it. Knows no tree, no tokens and no model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lade.pace.belief import Belief
from lade.pace.controller import Controller
from lade.pace.overhead import Overhead
from lade.pace.policy import PACE, PacePolicy
from lade.pace.shared import SharedCost
from lade.pace.sharing import PADDED, Row, Sharing


@dataclass(slots=True)
class _Step:
    """One step: its times in seconds by the clock, and what it carried."""

    began: float
    looks: bool  # for drafts
    rests: bool  # looks for none after fruitless looks, and is not timed
    first: bool  # of so many rows, or after a step that was not timed
    context: int
    rows: int
    tokens: int = 1  # of all rows
    drafted: float = 0.0
    verified: float = 0.0
    ended: float | None = None  # not yet, or never: what the caller does may raise


class Moments:
    """When a step begins, has its drafts, is verified, and ends, in seconds; several processes agree on other ones."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now

    def begun(self) -> float:
        return self._now()

    def drafted(self) -> float:
        return self._now()

    def verified(self) -> float:
        return self._now()

    def ended(self) -> float:
        return self.begun()


class WholeBudget:
    """Every row takes its whole budget in every step; the interface of `Pace`.

    Rows are those of the step at hand: others may be in the next one.

    Args:
        limit: the most nodes of a row's tree, the root included.

    Attributes:
        adapts: whether sizes are chosen.
        sharing: how the rows of a step share it.
    """

    adapts = False
    sharing: Sharing = PADDED

    def __init__(self, limit: int) -> None:
        self.limit = limit

    @property
    def fruitless(self) -> bool:
        """Whether the last looks saved less than they took, so that most steps look for no drafts."""
        return False

    def start(self, reference: bool = False) -> Belief:
        """A request starts. Returns its belief.

        Args:
            reference: whether it has one, a text that its own may repeat: the next step looks for drafts.
        """
        return Belief()

    def begin(self, contexts: Sequence[int], beliefs: Sequence[Belief]) -> int:
        return self.limit * len(beliefs)

    def choose(self, rows: Sequence[Row]) -> list[int]:
        return [len(row.masses) for row in rows]

    def carry(self, lengths: Sequence[int]) -> None:
        pass

    def verified(self) -> None:
        pass

    def ended(self) -> None:
        pass

    def learn(self, belief: Belief, expected: float, accepted: float) -> None:
        pass

    def pause(self) -> None:
        pass

    def use(self, shared: SharedCost) -> None:
        pass

    def end(self) -> Mapping[str, int]:
        return {}


class Pace(WholeBudget):
    """Chooses the size of every step by what steps cost and what drafts bring.

    Args:
        shared: costs of this model's steps.
        limit: the most nodes of a row's tree, the root included.
        now: a clock in seconds.
        sharing: how the rows of a step share it.
        moments: of steps; `None` for those of `now`.
    """

    adapts = True

    def __init__(
        self,
        shared: SharedCost,
        limit: int,
        now: Callable[[], float] = time.perf_counter,
        policy: PacePolicy = PACE,
        sharing: Sharing = PADDED,
        moments: Moments | None = None,
    ) -> None:
        super().__init__(limit)
        self.sharing = sharing
        self._shared, self._moments, self._policy = shared, moments or Moments(now), policy
        self._controller = Controller(shared, limit, policy, sharing)
        self._step: _Step | None = None  # the running one
        self._ended = 0  # steps that did not rest
        self._overhead = Overhead(policy.overhead)

    @property
    def fruitless(self) -> bool:
        return self._controller.fruitless

    def start(self, reference: bool = False) -> Belief:
        if reference:
            self._controller.refer()
        return Belief(self._policy.belief)

    def begin(self, contexts: Sequence[int], beliefs: Sequence[Belief]) -> int:
        """Note what the last step took, and begin the next.

        Args:
            contexts: tokens before each row's tree.
            beliefs: one per row.

        Returns:
            `Controller.room`: tokens worth growing; if roots only, `choose` is not to be asked.
        """
        now, last = self._moments.begun(), self._step
        if last is not None and last.ended is not None and not last.rests:
            self._end(last, last.ended)
        context, rows = self.sharing.context(contexts), len(beliefs)
        first = last is None or last.rows != rows
        room = self._controller.room(context, beliefs, self._overhead.ratio(rows))
        self._step = _Step(now, room > rows, self._controller.rests, first, context, rows)
        return room

    def choose(self, rows: Sequence[Row]) -> list[int]:
        """Nodes of each row in this step (`Controller.choose`)."""
        assert self._step is not None
        return self._controller.choose(rows, self._step.context)

    def carry(self, lengths: Sequence[int]) -> None:
        """The drafts are made: nodes of each row."""
        assert self._step is not None
        self._step.tokens, self._step.drafted = self.sharing.tokens(lengths), self._moments.drafted()

    def verified(self) -> None:
        """The model has chosen; the rest of the step is learning."""
        assert self._step is not None
        self._step.verified = self._moments.verified()

    def ended(self) -> None:
        """All that the step teaches is learned."""
        assert self._step is not None
        self._step.ended = self._moments.ended()

    def learn(self, belief: Belief, expected: float, accepted: float) -> None:
        """The model's choice at one token for which drafts were found (`Controller.learn`)."""
        self._controller.learn(belief, expected, accepted)

    def pause(self) -> None:
        """The running step is not timed: more than its trees is computed."""
        self._step = None
        self._controller.repeat()

    def use(self, shared: SharedCost) -> None:
        """Take the costs of another way to run the model, from the step that begins next."""
        self._shared.save()
        self._shared = self._controller.cost = shared
        self._step, self._overhead = None, Overhead(self._policy.overhead)

    def end(self) -> Mapping[str, int]:
        """End the call and store the costs. Returns `Controller.decisions`."""
        self._shared.save()
        return self._controller.decisions

    def _end(self, step: _Step, ended: float) -> None:
        timing = self._policy.timing
        self._ended += 1
        if self._ended <= timing.warm_up:
            return
        beside = step.drafted - step.began + ended - step.verified  # the forward
        look = self._overhead.looked(step.rows, beside) if step.looks else 0.0
        if step.tokens == step.rows:  # its cost is that of plain decoding's step: without drafting and learning
            seconds = ended - step.began - beside
            self._overhead.stepped(step.rows, seconds)
        else:
            seconds = ended - step.began - look
        kind = step.tokens, step.context, step.rows
        if not step.looks or not self._ended % timing.every or not self._shared.known(*kind):
            self._shared.observe(*kind, seconds, step.first)
