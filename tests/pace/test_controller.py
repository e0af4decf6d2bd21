"""How many tokens a step carries, with costs from a table: against brute force, and how it adapts to the text."""

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade.pace.belief import BELIEF, Belief
from lade.pace.controller import Controller
from lade.pace.knots import KNOTS
from lade.pace.policy import PACE
from lade.pace.sharing import PACKED, PADDED, Row, Sharing

SIZE, REST, TIMING = PACE.size, PACE.rest, PACE.timing
LIMIT = 48
CHAIN = [0.8**depth for depth in range(LIMIT)]


class Table:
    """Costs that never change: 1 for the root, `slope` more for every further node."""

    def __init__(self, slope: float = 0.02, measured: bool = True) -> None:
        self.slope, self.measured = slope, measured
        self.asked: list[tuple[int, int, int]] = []

    def table(self, limit: int, context: int, rows: int) -> list[float]:
        self.asked.append((limit, context, rows))
        return [1.0, *(1 + self.slope * further for further in range(limit))]

    def known(self, tokens: int, context: int, rows: int) -> bool:
        assert tokens == rows  # one token per row
        return self.measured


class Alone(Controller):
    """Of one row, with its belief."""

    def __init__(self, cost: Table, limit: int = LIMIT, sharing: Sharing = PADDED) -> None:
        super().__init__(cost, limit, sharing=sharing)
        self.belief = Belief()

    def grown(self, overhead: float = 0.0) -> int:
        return self.room(100, [self.belief], overhead)

    def pick(self, masses: Sequence[float], repeats: bool = False) -> int:
        return self.choose([Row(masses, self.belief, repeats)], 100)[0]

    def hear(self, expected: float, accepted: float) -> None:
        self.learn(self.belief, expected, accepted)


def certain() -> Belief:
    belief = Belief()
    belief.holds = 1.0
    return belief


def sure(limit: int = LIMIT, slope: float = 0.02) -> Alone:
    """One that believes that probabilities hold."""
    controller = Alone(Table(slope), limit)
    controller.belief = certain()
    return controller


def sure_rows(rows: Sequence[Sequence[float]]) -> list[Row]:
    return [Row(masses, certain()) for masses in rows]


def sizes(longest: int) -> list[int]:
    """Sizes to choose from: the knots, and the whole tree."""
    return [*(size for size in KNOTS if size < longest), longest]


def speed(rows: Sequence[Sequence[float]], nodes: int, slope: float) -> float:
    return sum(sum(masses[:nodes]) for masses in rows) / len(rows) / (1 + slope * (nodes - 1))


@st.composite
def trees(draw: st.DrawFn) -> list[float]:
    """Path probabilities in the order that a tree grew in, which is nearly theirs."""
    masses = draw(st.lists(st.floats(0, 1), max_size=LIMIT - 1))
    return [1.0, *sorted(masses, reverse=True)]


@given(st.lists(trees(), min_size=1, max_size=4), st.floats(0, 0.2))
def test_the_first_choice_is_nearly_the_fastest_of_all_sizes(rows: list[list[float]], slope: float) -> None:
    split = sure(slope=slope).choose(sure_rows(rows), 100)
    chosen = max(split)
    longest = max(map(len, rows))
    best = max(speed(rows, nodes, slope) for nodes in sizes(longest))
    assert chosen in sizes(longest)
    assert split == [min(chosen, len(masses)) for masses in rows]
    if chosen > 1:  # the rest is spent on exploration
        assert speed(rows, chosen, slope) >= (1 - SIZE.exploration) * best * (1 - 1e-9)
        assert best >= SIZE.start / SIZE.hysteresis
    else:
        assert best < SIZE.start / SIZE.hysteresis * (1 + 1e-9) or longest == 1


def test_the_exploration_bonus_makes_trees_wider_than_the_fastest() -> None:
    chain = [0.5**depth for depth in range(20)]
    fastest = max(sizes(20), key=lambda nodes: speed([chain], nodes, 0.008))
    assert sure(slope=0.008).pick(chain) > fastest
    unsure = sure(slope=0.008)
    unsure.belief.holds = 0.5  # no exploration in a text that may have changed
    assert unsure.pick([1.0, *(2 * mass for mass in chain[1:])]) == fastest


@given(trees(), st.integers(1, LIMIT))
def test_no_more_than_the_limit(masses: list[float], limit: int) -> None:
    controller = sure(limit, slope=0.0)
    for _ in range(5):
        room = controller.grown()
        assert 1 <= room <= limit
        assert 1 <= controller.pick(masses[:room]) <= room


def test_a_tree_that_costs_nothing_is_taken_whole() -> None:
    controller = sure(slope=0.0)
    assert controller.pick(CHAIN) == LIMIT
    assert controller.decisions == {"limit reached": 1}
    assert controller.pick(CHAIN[:20]) == 20
    assert controller.decisions == {"limit reached": 1, "most tokens per second": 1}


def test_drafts_not_worth_their_cost_are_not_sent() -> None:
    controller = sure()
    for _ in range(3):
        assert controller.pick([1.0, 0.02, 0.01]) == 1
    assert controller.decisions == {"drafts cost more than they bring": 3}


def test_the_root_alone() -> None:
    controller = Alone(Table(measured=False))
    assert controller.choose(sure_rows([[1.0], [1.0]]), 100) == [1, 1]
    assert controller.decisions == {"nothing to draft": 1}


def test_trees_grow_back_step_by_step() -> None:
    controller = sure(slope=0.0)
    controller.pick([1.0])
    grown = [controller.pick([1.0, *[0.5] * (controller.grown() - 1)]) for _ in range(4)]
    assert grown == [8, 12, 16, 24]


def test_costs_are_asked_for_the_steps_at_hand() -> None:
    controller = sure()
    controller.choose(sure_rows([CHAIN[:9], CHAIN[:5], CHAIN[:2]]), 321)
    assert controller.cost.asked == [(LIMIT, 321, 3)]


def test_all_padded_rows_together_decide() -> None:
    """One good row is worth a wide step for a few worthless ones, but not for many."""
    chain, worthless = CHAIN[:12], [1.0, *[0.001] * 11]
    alone = sure(slope=0.1).pick(chain)
    (nodes,) = {*sure(slope=0.1).choose(sure_rows([chain, worthless, worthless]), 100)}
    assert 1 < nodes < alone
    assert sure(slope=0.1).choose(sure_rows([chain, *[worthless] * 9]), 100) == [1] * 10
    assert sure(slope=0.1).choose(sure_rows([chain] * 7), 100) == [alone] * 7


OBSERVED = st.tuples(st.floats(0, 1), st.booleans())


@given(
    st.lists(st.tuples(trees(), st.booleans(), OBSERVED | st.none(), st.sampled_from((0.0, 0.03))), max_size=40),
    st.floats(0, 0.2),
    st.integers(2, LIMIT),
    st.booleans(),
)
def test_for_one_row_it_does_not_matter_how_rows_share(
    steps: list[tuple[list[float], bool, tuple[float, bool] | None, float]], slope: float, limit: int, measured: bool
) -> None:
    padded, packed = (Alone(Table(slope, measured), limit, sharing) for sharing in (PADDED, PACKED))
    for tree, repeats, heard, overhead in steps:
        room = padded.grown(overhead)
        assert packed.grown(overhead) == room
        if room > 1:
            assert packed.pick(tree[:room], repeats) == padded.pick(tree[:room], repeats)
        if heard is not None:
            expected, accepted = heard
            for controller in (padded, packed):
                controller.hear(expected, expected * accepted)
    assert packed.decisions == padded.decisions
    assert packed.belief.holds == padded.belief.holds


def test_each_row_is_believed_by_its_own_evidence() -> None:
    controller = Controller(Table(0.01), LIMIT, sharing=PACKED)
    good, hopeless = Belief(), Belief()
    rows = [Row(CHAIN[:11], belief) for belief in (hopeless, good)]
    before = controller.choose(rows, 100)
    for _ in range(8):
        controller.learn(hopeless, 0.8, 0.0)
        controller.learn(good, 0.8, 0.8)
    assert min(before) > 4
    assert controller.choose(rows, 100) == [1, 11]


def test_steps_that_rest_teach_every_belief() -> None:
    controller = Controller(Table(), LIMIT, sharing=PACKED)
    beliefs = [Belief(), Belief()]
    for _ in range(REST.patience):
        assert controller.room(100, beliefs, 9.0) > 2
        controller.choose([Row([1.0], belief) for belief in beliefs], 100)
    assert controller.room(100, beliefs, 9.0) == 2
    assert controller.rests
    after = 0.99 * BELIEF.prior + 0.01 * BELIEF.after_change
    assert [belief.holds for belief in beliefs] == pytest.approx([after, after])


# Rest: steps that look for no drafts


def step(controller: Alone, tree: Sequence[float], overhead: float = 0.0) -> int:
    """Nodes of the next one."""
    room = controller.grown(overhead)
    return controller.pick(tree[:room]) if room > 1 else room


def baselines(controller: Alone, steps: int) -> list[int]:
    """The steps, from 1 on, that carried one token to be timed."""
    found = []
    for number in range(1, steps + 1):
        before = controller.decisions["baseline timed"]
        nodes = step(controller, CHAIN)
        if controller.decisions["baseline timed"] > before:
            assert nodes == 1
            found.append(number)
    return found


def test_one_token_is_timed_when_a_model_is_new_and_now_and_then() -> None:
    asked = {TIMING.warm_up + 2**times for times in range(9)}  # ever more seldom, while its cost is not known
    always = {TIMING.baseline_every, 2 * TIMING.baseline_every}
    assert baselines(Alone(Table(measured=False)), 300) == sorted(asked | always)
    assert baselines(Alone(Table(measured=True)), 300) == [
        TIMING.baseline_every,
        2 * TIMING.baseline_every,
    ]


def test_each_number_of_rows_has_its_own_baselines() -> None:
    """Whether the cost was known, and is not any more, and how often it was asked for with other rows, is no matter."""
    cost = Table(measured=False)
    controller, beliefs = Controller(cost, LIMIT), [certain() for _ in range(3)]

    def timed(rows: int) -> bool:
        before = controller.decisions["baseline timed"]
        if controller.room(100, beliefs[:rows], 0.0) > rows:
            controller.choose(sure_rows([CHAIN] * rows), 100)
        return controller.decisions["baseline timed"] > before

    for _ in range(TIMING.warm_up):
        timed(1)
    assert [timed(1) for _ in range(8)] == [True, True, False, True, False, False, False, True]
    assert [timed(3) for _ in range(4)] == [True, True, False, True]
    assert [timed(1) for _ in range(4)] == [False] * 4
    cost.measured = True
    assert [timed(1) for _ in range(4)] == [False] * 4
    cost.measured = False
    assert [timed(1) for _ in range(4)] == [True, True, False, True]


def test_timing_changes_no_choice() -> None:
    controller = sure()
    before, baseline, after = [step(controller, CHAIN) for _ in range(TIMING.baseline_every + 1)][-3:]
    assert baseline == 1
    assert before == after > 1


def test_steps_of_one_token_are_their_own_baseline() -> None:
    controller = Alone(Table(slope=1.0, measured=False))
    assert step(controller, [1.0]) == 1
    steps = 2 * TIMING.baseline_every
    for _ in range(steps):
        step(controller, [1.0, 0.5])
    assert controller.decisions == {"nothing to draft": 1, "drafts cost more than they bring": steps}


def looks(controller: Alone, tree: Sequence[float], steps: int, overhead: float) -> list[bool]:
    """Which steps looked for drafts."""
    seen = []
    for _ in range(steps):
        seen.append(controller.grown(overhead) > 1)
        if seen[-1]:
            controller.pick(tree)
    return seen


@pytest.mark.parametrize("tree", [[1.0, 0.02, 0.01], [1.0]], ids=("worth nothing", "nothing"))
@pytest.mark.parametrize(
    ("overhead", "rests"),
    [(0.0, [0] * 5), (0.004, [0] * 5), (0.026, [5] * 5), (0.061, [12] * 5), (9.0, [16, 32, 64, 64, 64])],
)
def test_where_drafts_are_never_worth_their_cost_looks_take_little_time(
    tree: list[float], overhead: float, rests: list[int]
) -> None:
    expected = [True] * REST.patience
    for rest in rests:
        expected += [False] * rest + [True]
    assert looks(sure(), tree, len(expected), overhead) == expected


def test_where_a_token_repeats_and_no_draft_is_known_the_next_steps_look() -> None:
    controller = sure()
    looks(controller, [1.0], REST.patience, 9.0)
    while controller.grown(9.0) == 1:
        pass
    assert controller.pick([1.0], repeats=True) == 1
    learning, rest = REST.retries_after_repeat - 1, 2 * REST.rest
    assert looks(controller, [1.0], learning + rest, 9.0) == [True] * learning + [False] * rest


def step_of(controller: Controller, rows: Sequence[Row]) -> bool:
    """Whether a step of these rows looked for drafts."""
    looked = controller.room(100, [row.belief for row in rows], 9.0) > len(rows)
    if looked:
        controller.choose(rows, 100)
    return looked


@pytest.mark.parametrize(("repeating", "learning"), [(1, 0), (2, 1), (4, REST.retries_after_repeat - 1)])
def test_of_many_rows_each_gives_its_share_of_the_looks(repeating: int, learning: int) -> None:
    controller, beliefs = Controller(Table(0.02), LIMIT), [certain() for _ in range(4)]
    still = [Row([1.0], belief) for belief in beliefs]
    for _ in range(REST.patience):
        step_of(controller, still)
    repeats = [Row([1.0], belief, place < repeating) for place, belief in enumerate(beliefs)]
    while not step_of(controller, repeats):
        pass
    seen = [step_of(controller, still) for _ in range(learning + 2 * REST.rest)]
    assert seen == [True] * learning + [False] * 2 * REST.rest


def test_an_accepted_draft_of_one_row_of_many_ends_no_rest() -> None:
    controller, beliefs = Controller(Table(0.02), LIMIT), [Belief() for _ in range(16)]
    for belief in beliefs:
        belief.holds = 0.0
    rows = [Row([1.0], belief) for belief in beliefs]
    for _ in range(REST.patience):
        step_of(controller, rows)
    controller.learn(beliefs[0], 0.5, 0.5)
    assert not step_of(controller, rows)
    controller.learn(beliefs[1], 0.5, 0.5)
    assert step_of(controller, rows)


def test_where_the_belief_is_low_a_token_that_repeats_is_chance() -> None:
    controller = sure()
    for _ in range(8):
        controller.hear(0.9, 0.0)
    looks(controller, [1.0], REST.patience, 9.0)
    while controller.grown(9.0) == 1:
        pass
    assert controller.pick([1.0], repeats=True) == 1
    assert looks(controller, [1.0], 2 * REST.rest, 9.0) == [False] * 2 * REST.rest


def test_drafts_worth_their_cost_are_always_looked_for() -> None:
    controller = sure()
    assert all(looks(controller, CHAIN, TIMING.baseline_every - 1, 0.5))
    looks(controller, [1.0, 0.01], REST.most + 7, 0.5)
    seen = looks(controller, CHAIN, REST.longest + 20, 0.5)
    first = seen.index(True)
    assert 0 < first <= REST.longest
    assert all(seen[first:])  # one look that finds something is enough


@pytest.mark.parametrize("worthwhile", [True, False])
def test_drafts_that_save_less_than_looks_take_are_not_looked_for(worthwhile: bool) -> None:
    """Drafts of a step save half a step of one token, and are sent as long as steps look."""
    tree, overhead = [1.0, 0.75], 0.25 if worthwhile else 1.0
    controller = sure(slope=0.25)
    seen = looks(controller, tree, TIMING.baseline_every - 1, overhead)
    assert controller.decisions["most tokens per second"] == sum(seen)
    assert all(seen) is worthwhile
    if not worthwhile:
        looked = 2 * REST.patience  # half of each look is paid
        assert sum(seen[:looked]) == looked
        assert sum(seen[looked:]) == 2  # and rests of 16, 32 and 64 steps
        assert sum(looks(controller, tree, 130, overhead)) == 2


def test_the_longer_a_look_takes_the_wider_is_the_best_tree() -> None:
    """It is spent anyway, and there are fewer steps."""
    tree = [0.85**depth for depth in range(12)]
    nodes = []
    for overhead in (0.0, 2.0):
        controller = sure(slope=0.1)
        controller.grown(overhead)
        nodes.append(controller.pick(tree))
    assert nodes == [8, 12]


def test_a_draft_accepted_against_the_belief_ends_the_rest() -> None:
    for holds, looked in ((0.1, True), (0.95, False)):
        controller = sure()
        looks(controller, [1.0, 0.01], REST.patience, 9.0)
        assert not looks(controller, CHAIN, 1, 9.0)[0]
        controller.belief.holds = holds
        controller.hear(0.5, 0.5)
        assert looks(controller, CHAIN, 1, 9.0)[0] is looked


# Hysteresis


def noisy(masses: Sequence[float], noise: random.Random, size: float) -> list[float]:
    return [1.0, *(mass * noise.uniform(1 - size, 1 + size) for mass in masses[1:])]


def test_sizes_that_are_as_good_do_not_take_turns() -> None:
    """Every node is worth its cost within 2 %: nearly all sizes are equally fast, and noise makes each the best."""
    level = [1.0, 0.9, *[0.038] * 20]
    noise, controller, fastest = random.Random(0), sure(slope=0.02), set()
    sizes = []
    for _ in range(TIMING.baseline_every - 1):
        masses = noisy(level, noise, 0.1)
        sizes.append(controller.pick(masses))
        fastest.add(max(range(1, len(masses) + 1), key=lambda nodes: speed([masses], nodes, 0.02)))
    assert len(fastest) > 8
    assert sum(one != other for one, other in pairwise(sizes)) <= 1


def test_speculation_is_not_switched_on_and_off() -> None:
    """Drafts are worth as much as between the thresholds at which speculation starts and ends."""
    low, high = SIZE.start / SIZE.hysteresis, SIZE.start
    assert 1 < low < high
    for started in (1, 2):
        noise, controller = random.Random(0), sure(slope=0.02)
        controller._size.last = started
        sizes = [controller.pick([1.0, noise.uniform(low, high) * 1.02 - 1]) for _ in range(100)]
        assert set(sizes) == {started}


def test_another_size_is_taken_where_it_is_worth_it() -> None:
    controller = sure()
    few, many = [1.0, 0.8, *[0.01] * 20], [1.0, *[0.5] * 21]
    assert [controller.pick(masses) for masses in (few, many, few, many)] == [2, 22, 2, 22]


# Belief


@pytest.mark.parametrize("expected", [1.0, 0.9, 0.6, 0.4])
def test_drafts_that_are_never_accepted_end_and_come_back_when_they_are(expected: float) -> None:
    controller = Alone(Table())
    tree = [1.0, expected, *(expected * 0.7**depth for depth in range(1, 9))]

    def after(steps: int, accepted: float) -> list[int]:
        sizes = []
        for _ in range(steps):
            sizes.append(controller.pick(tree))
            controller.hear(expected, accepted)
        return sizes

    assert min(after(100, expected)) > 1
    assert after(32, 0.0)[-1] == 1
    assert set(after(200, 0.0)) == {1}
    assert after(5, expected)[-1] > 1
    assert after(20, expected)[-1] == after(1, expected)[0] > 3


@pytest.mark.parametrize("probability", [0.3, 0.6, 0.9])
def test_probabilities_that_hold_are_believed(probability: float) -> None:
    """Runs of misses that are no more frequent than expected hardly lower the belief."""
    noise, controller, holds = random.Random(0), Alone(Table()), []
    for _ in range(2000):
        controller.hear(probability, probability * (noise.random() < probability))
        holds.append(controller.belief.holds)
    assert sum(holds) / len(holds) > 0.85


def test_unlikely_drafts_that_are_accepted_are_no_evidence() -> None:
    """They are accepted as often as any token."""
    controller = Alone(Table())
    for step in range(100):
        controller.hear(0.9, 0.01 if step % 10 == 0 else 0.0)
    assert controller.pick([1.0, 0.9]) == 1


@given(st.lists(st.tuples(st.floats(0, 1.5), st.booleans(), st.floats(0, 1)), max_size=60))
def test_belief_is_a_probability_after_any_observations(seen: list[tuple[float, bool, float]]) -> None:
    controller = Alone(Table())
    for expected, accepted, share in seen:
        controller.hear(expected, accepted * share * expected)
        assert 0 < controller.belief.holds < 1


# Statistics


@given(st.lists(trees(), min_size=1, max_size=20), st.booleans())
def test_every_step_has_one_reason(steps: list[list[float]], measured: bool) -> None:
    controller = Alone(Table(measured=measured))
    for masses in steps:
        step(controller, masses, overhead=0.03)
        controller.hear(sum(masses[1:3]), 0.0)
    assert sum(controller.decisions.values()) == len(steps)
