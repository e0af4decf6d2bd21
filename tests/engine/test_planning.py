"""One total of tokens for prompts and drafts of a step."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade.core.request import Request
from lade.engine.admission import reads
from lade.engine.planning import SHARE, most_prompt_tokens, planned
from lade.pace.reading import UNLIMITED, WHOLE, WholeReading


class Target:
    """Has so many positions."""

    def __init__(self, positions: int = 1 << 30) -> None:
        self.positions, self.asked = positions, list[int]()

    def depth_limit(self, slot: int, remaining: int) -> int:
        self.asked.append(slot)
        return min(remaining - 1, self.positions)

    def max_nodes(self, slots: list[int]) -> int:
        return 5


class Admission:
    def __init__(self, opened: bool) -> None:
        self._opened = opened

    def opened(self, request: Request) -> bool:
        return self._opened


def decodes(slot: int) -> Request:
    return Request(0, [1, 2, 3], 2, limit=10, slot=slot, prefilled=2)


class Bounded(WholeReading):
    """Allows so many prompt tokens."""

    def __init__(self, most: int) -> None:
        self._most, self.asked = most, list[tuple[int, int]]()

    def most(self, rows: int, unread: int) -> int:
        self.asked.append((rows, unread))
        return self._most


def plan_of(
    active: list[Request],
    tokens: int,
    positions: int = 1 << 30,
    opened: bool = True,
    reading: WholeReading = WHOLE,
) -> Any:
    target: Any = Target(positions)
    admission: Any = Admission(opened)
    plan = planned(active, target, admission, tokens, reading)
    assert target.asked == [request.slot for request in active if not reads(request)], "asked once each"
    return plan


PROMPTS = st.lists(st.integers(1, 12), max_size=5)


@given(rows=st.integers(0, 30), prompts=PROMPTS, tokens=st.integers(1, 40))
def test_one_total(rows: int, prompts: list[int], tokens: int) -> None:
    unread = [Request(0, [7] * length, length, 9, slot=rows + index) for index, length in enumerate(prompts)]
    plan = plan_of([*map(decodes, range(rows)), *unread], tokens)
    assert len(plan.decoding) == len(plan.depths) == rows
    read = [len(chunk) for chunk in plan.reading]
    if not prompts:
        assert (plan.max_nodes, read) == (UNLIMITED, [])
        return
    assert sum(read) >= min(sum(min(length, 5) for length in prompts), max(1, tokens // SHARE)), "prompts go on"
    assert sum(read) + rows * plan.max_nodes <= max(tokens, rows + max(1, tokens // SHARE))
    if rows and tokens // SHARE > rows:
        assert rows * plan.max_nodes > tokens // SHARE - rows, "drafts get their share"
    assert [chunk.request for chunk in plan.reading] == unread[: len(read)], "first come, first served"
    for chunk, length in zip(plan.reading, prompts, strict=False):
        assert len(chunk.draft()) == len(chunk)
        assert chunk.draft().queries == ([length - 1] if len(chunk) == length else [])


@pytest.mark.parametrize(
    ("tokens", "rows", "most"),
    [(256, 0, 256), (256, 1, 192), (256, 8, 192), (256, 100, 156), (256, 400, 64), (1, 1, 1)],
)
def test_the_share_of_prompts(tokens: int, rows: int, most: int) -> None:
    assert most_prompt_tokens(tokens, rows) == most


def test_what_short_prompts_leave_is_for_drafts() -> None:
    plan = plan_of([decodes(0), decodes(1), Request(0, [7, 7], 2, 9, slot=2)], 64)
    assert plan.max_nodes == 31


@pytest.mark.parametrize("opened", [True, False])
def test_a_root_without_a_position(opened: bool) -> None:
    """An engine's request is alone in its forward, which may raise; a call's own loop raises for its caller."""
    plan = plan_of([decodes(0)], 64, positions=-1, opened=opened)
    assert (len(plan.outgrown), plan.decoding, plan.depths) == ((1, [], []) if opened else (0, plan.decoding, [0]))


@pytest.mark.parametrize("packed", [True, False])
def test_forwards(packed: bool) -> None:
    plan = plan_of([decodes(0), *(Request(0, [7, 7], 2, 9, slot=slot) for slot in (1, 2))], 64)
    counts = [(len(decoding), [len(chunk) for chunk in reading]) for decoding, reading in plan.forwards(packed)]
    assert counts == ([(1, [2, 2])] if packed else [(1, []), (0, [2]), (0, [2])])


def test_the_time_of_steps_bounds_prompts() -> None:
    """What they leave of the total is for drafts; a step that reads none has no total."""
    active = [decodes(0), decodes(1), *(Request(0, [7] * 4, 4, 9, slot=slot) for slot in (2, 3))]
    bounded = Bounded(5)
    plan = plan_of(active, 40, reading=bounded)
    assert ([len(chunk) for chunk in plan.reading], plan.max_nodes) == ([4, 1], 17)
    assert bounded.asked == [(2, 2)]
    plan = plan_of(active, 40, reading=Bounded(0))
    assert (plan.reading, plan.max_nodes) == ([], UNLIMITED)
