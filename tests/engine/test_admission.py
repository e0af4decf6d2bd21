"""Who is admitted when: slots and a budget of memory, first come, first served."""

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lade.core.request import Request
from lade.engine.admission import Admission
from lade.target.budget import KVBudget, LayerBytes

LIMIT = 2500
LAYERS = (LayerBytes(2), LayerBytes(3, window=90))


class Target:
    """Notes its open slots."""

    def __init__(self) -> None:
        self.slots: set[int] = set()

    def open(self, slot: int, tokens: int, most: int) -> None:
        assert slot not in self.slots
        self.slots.add(slot)

    def close(self, slot: int) -> None:
        self.slots.remove(slot)


def request_of(prompt: int, limit: int) -> Request:
    return Request(0, [7] * prompt, prompt, limit)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 100)), min_size=1, max_size=12),
    slots=st.integers(1, 5),
    packed=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_all_are_admitted_in_order_within_the_budget(
    sizes: list[tuple[int, int]], slots: int, packed: bool, seed: int
) -> None:
    """They arrive and end in any order; nobody waits who is first and has room, and nobody waits for ever."""
    target: Any = Target()
    noise = random.Random(seed)
    budget = KVBudget(LIMIT, LAYERS, packed, nodes=8)
    admission = Admission(target, slots, budget=budget)
    arriving = [request for request in map(request_of, *zip(*sizes, strict=True)) if _needs(request) <= LIMIT]
    expected, admitted, active, longest = [*arriving], list[Request](), list[Request](), 0
    while arriving or active or admission:
        if arriving and noise.random() < 0.5:
            admission.submit(arriving.pop(0))
        new = admission.admit()
        admitted += new
        active += new
        assert len(active) <= slots
        if not packed:
            longest = max([longest, *map(_needs, new)]) if len(active) > len(new) else max(map(_needs, new), default=0)
        assert budget.reserved == _reserved(active, longest) <= LIMIT
        assert active or not admission, "whoever is first is admitted where nobody decodes"
        if active and (not arriving or noise.random() < 0.5):
            admission.release(active.pop(noise.randrange(len(active))))
    assert admitted == expected
    assert not target.slots
    assert budget.reserved == 0


def _needs(request: Request) -> int:
    most = request.prompt_length + request.limit + 64
    return 2 * most + 3 * min(90, most)


def _reserved(active: list[Request], longest: int) -> int:
    """Padded slabs, `longest` > 0, are as long as the longest one since no slot was open."""
    return len(active) * longest if longest else sum(map(_needs, active))


def test_the_first_one_is_not_overtaken() -> None:
    """A small request behind a large one waits, though it would fit."""
    target: Any = Target()
    admission = Admission(target, slots=4, budget=KVBudget(1000, LAYERS, packed=True, nodes=8))
    large, small = [request_of(50, 40) for _ in range(2)], request_of(1, 1)
    for request in (*large, small):
        admission.submit(request)
    assert admission.admit() == large[:1]
    assert admission.admit() == []
    admission.release(large[0])
    assert admission.admit() == [large[1], small]


def test_one_that_waits_can_be_cancelled() -> None:
    target: Any = Target()
    admission = Admission(target, slots=4, budget=KVBudget(1000, LAYERS, packed=True, nodes=8))
    first, second, third = (request_of(50, 40) for _ in range(3))
    for request in (first, second, third):
        admission.submit(request)
    assert admission.admit() == [first]
    second.cancelled = True
    admission.end_cancelled()
    admission.release(first)
    assert admission.admit() == [third]
    assert second.finished
