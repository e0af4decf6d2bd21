"""What a step costs by its tokens: seconds of whole steps in, relative costs out, per batch size and context length.

Width: tokens of the step over its rows, a fraction where rows carry different numbers.

Only ratios at one moment come out, so a machine that slows down changes nothing. The caller measures the time and holds
the lock. Knows no model, no file and no clock.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import sub

from lade.pace.changes import Change
from lade.pace.curve import KALMAN, Beside, Curve, KalmanPolicy, monotone
from lade.pace.knots import KNOTS, WIDEST, nearest

Key = tuple[int, int]  # logarithms to base 2: of rows, of the context
Costs = Mapping[Key, Sequence[float]]  # what `StepCost.logs` gives


@dataclass(frozen=True)
class CostPolicy:
    """How kinds of steps share costs, and how optimistic costs are.

    Attributes:
        kalman: the filter of each curve.
        shortest: contexts up to 2**shortest tokens share one curve.
        context_change: share of the prior's covariance that a curve for another context starts with, per doubling.
        recent, within: a width is known if it was timed so many times within the last so many steps.
        optimism: standard deviations by which costs of one row lie below the posterior mean. With this lower
            confidence bound, widths that were not timed lately are tried where that matters. Without it costs of unused
            widths stayed at an old estimate (1.55 at 16 tokens where 1.40 was measured), and wider trees were never
            tried. Costs of more rows are the mean: they gain less by drafts, and a bound below it sent them at every
            step.
        table_change: change of a log cost from which tables are made anew.
    """

    kalman: KalmanPolicy = KALMAN
    shortest: int = 7
    context_change: float = 0.1
    recent: int = 3
    within: int = 512
    optimism: float = 1.0
    table_change: float = 0.01


COST = CostPolicy()


@dataclass(slots=True)
class _Entry:
    """A curve, its costs as last computed, and when each knot was timed."""

    curve: Curve
    timed: list[deque[int]]  # [knots] numbers of the latest steps
    bounds: list[float] = field(default_factory=list)  # [knots - 1] lower bounds of log costs, which `costs` come from
    costs: list[float] = field(default_factory=list)  # [knots]
    tables: dict[int, list[float]] = field(default_factory=dict)  # by limit
    changed: bool = True  # whether the curve moved since


class StepCost:
    """Costs of steps, learned while decoding.

    Args:
        earlier: what `logs` gave in an earlier process: the prior mean, which a few steps outweigh.
    """

    def __init__(self, earlier: Costs | None = None, policy: CostPolicy = COST) -> None:
        self._policy = policy
        self._entries = {key: self._fresh(logs) for key, logs in (earlier or {}).items()}
        self._steps = 0

    def logs(self) -> dict[Key, list[float]]:
        """Per kind of step the logarithms of the costs of all knots but the first."""
        return {key: entry.curve.logs for key, entry in self._entries.items()}

    def observe(self, tokens: int, context: int, rows: int, seconds: float, first: bool = False) -> None:
        """One whole step. Ignored if it is wider than 256 tokens per row or its time is not positive and finite.

        Args:
            first: after requests have joined or left.
        """
        width = _width(tokens, rows)
        if width > WIDEST or not 0 < seconds < math.inf:
            return
        self._steps += 1
        entry = self._entry(context, rows)
        counted, change = entry.curve.observe(width, seconds, Beside(math.log2(rows), float(first)))
        if change is Change.SHAPE:
            for steps in entry.timed:
                steps.clear()
        elif change is Change.LEVEL:
            entry.timed[0].clear()  # wider steps cannot tell a slower machine from a steeper curve
        if counted:
            entry.changed = True
            entry.timed[nearest(width)].append(self._steps)
        else:
            entry.timed[nearest(width)].clear()

    def table(self, limit: int, context: int, rows: int) -> list[float]:
        """Costs of 0 (1.0 too) to `limit` nodes per row over the cost of one: never below 1, never falling.

        The list is cached: do not change it.
        """
        entry = self._entry(context, rows)
        costs = self._costs(entry, self._policy.optimism if rows == 1 else 0.0)
        table = entry.tables.get(limit)
        if table is None:
            table = entry.tables[limit] = _table(costs, limit)
        return table

    def known(self, tokens: int, context: int, rows: int) -> bool:
        """Whether steps of about this width were timed a few times lately."""
        steps = self._entry(context, rows).timed[nearest(min(_width(tokens, rows), WIDEST))]
        return len(steps) == self._policy.recent and self._steps - steps[0] < self._policy.within

    def _entry(self, context: int, rows: int) -> _Entry:
        key = (rows - 1).bit_length(), max((context - 1).bit_length(), self._policy.shortest)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = self._new(key)
        return entry

    def _new(self, key: Key) -> _Entry:
        """Starts from the nearest kind of step, first by rows, then by context."""
        rows, context = key
        near = min(self._entries, key=lambda other: (abs(other[0] - rows), abs(other[1] - context)), default=None)
        if near is None:
            prior = self._policy.kalman.prior
            return self._fresh([prior.log_cost(knot * 2**rows, 2**rows, 2**context) for knot in KNOTS[1:]])
        entry = self._entries[near]
        if near[0] == rows:
            timed = [deque(steps, maxlen=self._policy.recent) for steps in entry.timed]
            return _Entry(entry.curve.similar(self._policy.context_change * abs(near[1] - context)), timed)
        # The same number of tokens costs about the same in any number of rows.
        costs, factor = monotone(entry.curve.logs), 2.0 ** (rows - near[0])
        one = _cost_at(costs, factor)
        return self._fresh([math.log(_cost_at(costs, knot * factor) / one) for knot in KNOTS[1:]])

    def _fresh(self, logs: Sequence[float]) -> _Entry:
        return _Entry(Curve(logs, self._policy.kalman), [deque(maxlen=self._policy.recent) for _ in KNOTS])

    def _costs(self, entry: _Entry, optimism: float) -> list[float]:
        if entry.changed:  # stays set until all is done: a process that is forked in between does it anew
            bounds = entry.curve.lower_bound(optimism)
            if not entry.bounds or max(map(abs, map(sub, bounds, entry.bounds))) > self._policy.table_change:
                entry.tables.clear()
                entry.costs = monotone(bounds)
                entry.bounds = bounds
            entry.changed = False
        return entry.costs


def _width(tokens: int, rows: int) -> float:
    return max(tokens / rows, 1.0)


def _cost_at(costs: Sequence[float], width: float) -> float:
    """Linear between the knots and beyond the last one; that of width 1 below the first."""
    if width <= 1:
        return costs[0]
    high = min(bisect_left(KNOTS, width), len(KNOTS) - 1)
    low = high - 1
    return costs[low] + (costs[high] - costs[low]) * (width - KNOTS[low]) / (KNOTS[high] - KNOTS[low])


def _table(costs: Sequence[float], limit: int) -> list[float]:
    table = [1.0, 1.0]
    for high in range(1, len(KNOTS)):
        left, right = KNOTS[high - 1 : high + 1]
        step = (costs[high] - costs[high - 1]) / (right - left)
        table += [costs[high - 1] + step * ahead for ahead in range(1, right - left + 1)]
        if right >= limit:
            break
    table += [table[-1] + step * ahead for ahead in range(1, limit - WIDEST + 1)]
    return table[: limit + 1]
