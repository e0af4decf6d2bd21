"""A curve that becomes steep at once, while all steps are wide: drafts stop. In simulated time."""

import math
import random
from collections import Counter
from collections.abc import Callable

import pytest

from lade.pace.cost import StepCost
from lade.pace.pace import Pace
from lade.pace.shared import SharedCost
from lade.pace.sharing import PACKED, Row

LIMIT, TURN, END = 9, 200, 400  # nodes of a row; steps
CHAIN = [0.8**depth for depth in range(LIMIT)]
Cost = Callable[[float], float]  # of a step by its tokens per row


def flat(width: float) -> float:
    return 1 + 0.02 * (width - 1)


def decoded(before: Cost, after: Cost, rows: int, seed: int) -> tuple[list[int], Counter[str]]:
    """Tokens of each step, of good drafts, and why; the costs change after `TURN` steps."""
    generator, seconds = random.Random(seed), [0.0]
    pace = Pace(SharedCost(StepCost(), lambda costs: None), LIMIT, now=lambda: seconds[0], sharing=PACKED)
    beliefs, carried = [pace.start() for _ in range(rows)], []
    for step in range(END):
        room, lengths = pace.begin([100] * rows, beliefs), [1] * rows
        if room > rows:
            lengths = pace.choose([Row(CHAIN, belief) for belief in beliefs])
        pace.carry(lengths)
        cost = after if step >= TURN else before
        seconds[0] += cost(sum(lengths) / rows) * math.exp(generator.gauss(0, 0.03))
        pace.verified()
        pace.ended()
        carried.append(sum(lengths))
    return carried, Counter(pace.end())


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("steep", [lambda width: width, lambda width: 10 if width > 1 else 1], ids=("tokens", "jump"))
def test_drafts_that_cost_more_than_they_bring_at_once_stop(steep: Cost, rows: int) -> None:
    for seed in range(3):
        carried, _ = decoded(flat, steep, rows, seed)
        assert min(carried[TURN - 50 : TURN]) > rows
        assert sum(tokens > rows for tokens in carried[TURN:]) <= 8


@pytest.mark.parametrize("factor", [0.2, 3.0])
def test_a_machine_of_another_speed_drafts_on(factor: float) -> None:
    for seed in range(3):
        carried, reasons = decoded(flat, lambda width: factor * flat(width), 1, seed)
        assert sum(tokens > 1 for tokens in carried[TURN:]) >= END - TURN - 5
        assert reasons["baseline timed"] <= 12
