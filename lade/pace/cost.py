"""What a step costs: seconds of whole steps in, relative costs of wider ones out, per rows and length of context.

Only ratios at one moment are told, so a machine that turns slower changes nothing. Whoever uses it measures the time
and holds the lock. Knows no model, no file and no clock.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import sub

from lade.pace.changes import Change
from lade.pace.curve import KNOTS, SPOTS, WIDEST, Curve, monotone, prior

SHORTEST = 7  # contexts up to 2**7 tokens cost the same
SIMILAR = 0.1  # doubt about a curve of a neighbouring context
FEW, LATELY = 3, 512  # measured lately: so many times in so many steps
LUCK = 1.0
MATTERS = 0.01  # how far a cost changes before a new table is worth its time

Key = tuple[int, int]  # logarithms to base 2: of rows, of the context
Costs = Mapping[Key, Sequence[float]]  # what `StepCost.logs` gives


@dataclass(slots=True)
class _Entry:
    """A curve, what was read from it (and as what it was then), and when its knots were measured."""

    curve: Curve
    logs: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    tables: dict[int, list[float]] = field(default_factory=dict)
    changed: bool = True
    measured: list[deque[int]] = field(default_factory=lambda: [deque(maxlen=FEW) for _ in KNOTS])


class StepCost:
    """Costs of steps, learned while decoding.

    Args:
        guesses: what `logs` gave earlier, which a few steps overrule.
        luck: standard deviations by which a cost may be better than what was learned: widths that were not measured
            lately are told as cheap as they may well be, so they get tried where that matters, and only there.
    """

    def __init__(self, guesses: Mapping[Key, Sequence[float]] | None = None, luck: float = LUCK) -> None:
        self._luck = luck
        self._entries = {key: _Entry(Curve(logs)) for key, logs in (guesses or {}).items()}
        self._steps = 0

    def logs(self) -> dict[Key, list[float]]:
        """Per kind of step the logarithms of the costs of all knots but the first."""
        return {key: entry.curve.logs for key, entry in self._entries.items()}

    def observe(self, tokens: int, context: int, rows: int, seconds: float) -> None:
        """One whole step. One wider than 256 tokens per row, or without a time, teaches nothing."""
        width = _width(tokens, rows)
        if width > WIDEST or not 0 < seconds < math.inf:
            return
        self._steps += 1
        entry = self._entry(context, rows)
        counted, change = entry.curve.observe(width, seconds)
        if change is Change.SHAPE:
            for steps in entry.measured:
                steps.clear()
        if counted:
            entry.changed = True
            entry.measured[_knot(width)].append(self._steps)

    def table(self, limit: int, context: int, rows: int) -> list[float]:
        """Costs of 0 (which stands at 1.0) to `limit` nodes per row over that of one, never below 1, never falling.
        It is kept: not to be changed."""
        entry = self._entry(context, rows)
        costs = self._costs(entry)
        table = entry.tables.get(limit)
        if table is None:
            table = entry.tables[limit] = _table(costs, limit)
        return table

    def known(self, tokens: int, context: int, rows: int) -> bool:
        """Whether such a step, or one of about its width, was measured a few times lately."""
        steps = self._entry(context, rows).measured[_knot(min(_width(tokens, rows), WIDEST))]
        return len(steps) == FEW and self._steps - steps[0] < LATELY

    def _entry(self, context: int, rows: int) -> _Entry:
        key = (rows - 1).bit_length(), max((context - 1).bit_length(), SHORTEST)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = self._new(key)
        return entry

    def _new(self, key: Key) -> _Entry:
        """From the nearest kind of step, a context's distance counting less than that of rows."""
        rows, context = key
        near = min(self._entries, key=lambda other: (abs(other[0] - rows), abs(other[1] - context)), default=None)
        if near is None:
            return _Entry(Curve([prior(knot * 2**rows, 2**rows) for knot in KNOTS[1:]]))
        entry = self._entries[near]
        if near[0] == rows:
            measured = [deque(steps, maxlen=FEW) for steps in entry.measured]
            return _Entry(entry.curve.like(SIMILAR * abs(near[1] - context)), measured=measured)
        # As many tokens cost about the same in any rows.
        costs, factor = monotone(entry.curve.logs), 2.0 ** (rows - near[0])
        return _Entry(Curve([math.log(_between(costs, knot * factor) / _between(costs, factor)) for knot in KNOTS[1:]]))

    def _costs(self, entry: _Entry) -> list[float]:
        if entry.changed:  # until all is done: a process that is forked in between does it anew
            logs = entry.curve.lucky(self._luck)
            if not entry.logs or max(map(abs, map(sub, logs, entry.logs))) > MATTERS:
                entry.tables.clear()
                entry.costs = monotone(logs)
                entry.logs = logs
            entry.changed = False
        return entry.costs


def _width(tokens: int, rows: int) -> int:
    return max(-(-tokens // rows), 1)


def _knot(width: int) -> int:
    """The nearest one."""
    low, _, high, share = SPOTS[width]
    return high if share >= 0.5 else low


def _between(costs: Sequence[float], width: float) -> float:
    """Linear between knots and behind the last; as for width 1 before the first."""
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
