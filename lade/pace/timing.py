"""Which steps are timed, and which carry one token only to be timed: all costs are relative to one token."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TimingPolicy:
    """When steps are timed, in steps of one call unless said otherwise.

    Attributes:
        warm_up: first steps, whose times are ignored: caches are cold and buffers grow. Taken for the cost of one
            token, they made every wider forward of a small model look nearly free.
        baseline_every: period of the steps of one token later on.
        every: period of the steps that are timed if their cost is known: updating the costs takes time too.
        repeats: how often a step of one token is repeated, as every other step, while it was not timed: ways to
            compute that are tried in such steps take ten of them at most. Chosen without data.
    """

    warm_up: int = 2
    baseline_every: int = 128
    every: int = 4
    repeats: int = 16


TIMING = TimingPolicy()
