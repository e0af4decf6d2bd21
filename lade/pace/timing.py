"""Which steps are timed, and which carry one token only to be timed: all costs are relative to one token."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TimingPolicy:
    """When steps are timed, in steps of one call unless said otherwise.

    Attributes:
        warm_up: first steps, whose times are ignored: caches are cold and buffers grow. Taken for the cost of one
            token, they made every wider forward of a small model look nearly free.
        baseline_every: period of the steps of one token later on.
        every: period of the steps that are timed if their cost is known, beside those that carry one token only to be
            timed: updating the costs takes time too.
        repeats: how often a step of one token is repeated, as every other step, while it was not timed: ways to
            compute that are tried in such steps take ten of them at most. Chosen without data.
    """

    warm_up: int = 2
    baseline_every: int = 128
    every: int = 4
    repeats: int = 16


TIMING = TimingPolicy()


class Baseline:
    """Which steps of one call carry one token per row, to be timed."""

    def __init__(self, policy: TimingPolicy = TIMING) -> None:
        self._policy = policy
        self._steps = 0
        self._unknown: Counter[int] = Counter()  # rows -> steps since the cost of one token per row was known
        self._asked: int | None = None  # rows of this step, if it carries one token per row because that is not known
        self._repeats = 0

    def begin(self) -> None:
        """A step begins."""
        self._steps += 1
        if self._asked is not None:  # the last step was timed
            self._repeats = 0
        self._asked = None

    def due(self, rows: int, known: bool) -> bool:
        """Whether this step does. While the cost is not known, steps 1, 2, 4, 8 and so on of as many rows do."""
        policy = self._policy
        if self._steps <= policy.warm_up:
            return False
        if known:
            self._unknown[rows] = 0
        else:
            self._unknown[rows] = steps = self._unknown[rows] + 1
            if not steps & (steps - 1):
                self._asked = rows
                return True
        return self._steps % policy.baseline_every == 0

    def repeat(self) -> None:
        """This step was not timed. If its time was wanted, that of the next but one is, unless none seems timed."""
        rows, self._asked = self._asked, None
        if rows is not None and self._repeats < self._policy.repeats:
            self._unknown[rows] = max(self._unknown[rows], 4) - 2
            self._repeats += 1
