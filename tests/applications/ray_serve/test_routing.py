"""The rule by which replicas are chosen, without replicas."""

import json
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lade.applications.ray_serve.routing import Route, prefix_of, ranked, route_of

NAMES = st.lists(st.text("abcdefgh", min_size=4, max_size=8), min_size=1, max_size=8, unique=True)
ROUTES = st.builds(Route, st.text(max_size=20), st.text(max_size=20))
SLOTS = 4


def idle(names: list[str]) -> dict[str, int]:
    return dict.fromkeys(names, 0)


@given(NAMES, ROUTES, st.data())
def test_a_lost_replica_moves_its_own_routes_alone(names: list[str], route: Route, data: st.DataObject) -> None:
    before = ranked(route, idle(names), SLOTS)
    lost = data.draw(st.sampled_from(names))
    after = ranked(route, idle([name for name in names if name != lost]), SLOTS)
    assert sorted(before) == sorted(names)
    if before[0] != lost:
        assert after == [name for name in before if name != lost]


@given(NAMES, ROUTES, st.randoms(use_true_random=False), st.integers(0, SLOTS - 1))
def test_neither_order_nor_some_load_moves_a_route(names: list[str], route: Route, random: Any, load: int) -> None:
    mixed = random.sample(names, len(names))
    assert ranked(route, dict.fromkeys(mixed, load), SLOTS) == ranked(route, idle(names), SLOTS)


@given(NAMES, ROUTES, st.data())
def test_full_replicas_come_last(names: list[str], route: Route, data: st.DataObject) -> None:
    """The others keep their order; where all are full the least loaded one is first."""
    running = {name: data.draw(st.integers(0, 2 * SLOTS)) for name in names}
    order = ranked(route, running, SLOTS)
    free = [name for name in names if running[name] < SLOTS]
    assert order[: len(free)] == [name for name in ranked(route, idle(names), SLOTS) if name in free]
    full = [running[name] for name in order[len(free) :]]
    assert full == sorted(full)


@given(NAMES, st.data())
def test_without_a_route_the_load_decides(names: list[str], data: st.DataObject) -> None:
    running = {name: data.draw(st.integers(0, 9)) for name in names}
    assert running[ranked(None, running, SLOTS)[0]] == min(running.values())


def test_tenants_are_spread() -> None:
    names = [f"replica {index}" for index in range(4)]
    homes = Counter(ranked(Route(f"tenant {index}", ""), idle(names), SLOTS)[0] for index in range(2000))
    assert all(400 < homes[name] < 600 for name in names)  # 500 expected; 100 are 5 standard deviations


def test_what_does_not_fit_is_spread_by_prefix() -> None:
    names = [f"replica {index}" for index in range(4)]
    orders = [ranked(Route("tenant", f"prefix {index % 30}"), idle(names), SLOTS) for index in range(60)]
    assert orders[:30] == orders[30:]
    assert len({order[0] for order in orders}) == 1
    assert len({order[1] for order in orders}) == 3


def test_there_may_be_no_replica() -> None:
    assert ranked(Route("", ""), {}, SLOTS) == ranked(None, {}, SLOTS) == []


def chat(*lines: tuple[str, str], **fields: Any) -> bytes:
    return json.dumps(fields | {"messages": [{"role": role, "content": text} for role, text in lines]}).encode()


SYSTEM, FIRST = ("system", "Be brief."), ("user", "Name a river.")


def test_a_conversation_keeps_its_prefix() -> None:
    begun = chat(SYSTEM, FIRST)
    longer = chat(SYSTEM, FIRST, ("assistant", "The Elbe."), ("user", "And one more?"), seed=3, stream=True)
    assert prefix_of(begun) == prefix_of(longer) != prefix_of(chat(SYSTEM, ("user", "Name a lake.")))
    code = "def add(a, b):\n" * 100
    assert prefix_of(json.dumps({"prompt": code}).encode()) == prefix_of(json.dumps({"prompt": code + "x"}).encode())
    assert prefix_of(json.dumps({"input": "a"}).encode()) != prefix_of(json.dumps({"input": "b"}).encode())
    for name in ("instructions", "system"):
        bodies = [json.dumps({name: text, "messages": []}).encode() for text in ("Be short.", "Be long.")]
        assert prefix_of(bodies[0]) != prefix_of(bodies[1])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["messages", "prompt", "role", "input"]), inner),
)


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_body_has_a_prefix(body: bytes) -> None:
    assert len(prefix_of(body)) <= 1024


def test_a_deep_body_has_none() -> None:
    assert prefix_of(b"[" * 100_000) == ""


def test_keys_decide_where_there_are_some() -> None:
    one, two = chat(FIRST), chat(("user", "Name a lake."))
    assert route_of(None, True, one) is None
    keyed = [route_of("key 1", True, body) for body in (one, two)]
    assert keyed[0] is not None
    assert keyed[1] is not None
    assert keyed[0].home == keyed[1].home
    assert keyed[0].overflow != keyed[1].overflow
    alone = [route_of("everyone", False, body) for body in (one, two)]
    assert alone[0] is not None
    assert alone[1] is not None
    assert alone[0].home != alone[1].home
