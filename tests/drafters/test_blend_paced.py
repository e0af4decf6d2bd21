"""The scored tree with adaptive sizes: a cut tree is a smaller tree, and unpredictable text takes one token a step.

Steps cost 2 % more per token, by a simulated clock. A text is predictable where the model's likeliest tokens follow
each other. It is unpredictable where tokens are drawn at random ("honest": as the model predicts), or where no draft is
ever accepted ("adverse").
"""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from drafting import Entry, Says, warm_of
from hypothesis import given, settings
from hypothesis import strategies as st

from lade import LookaheadConfig
from lade.core.request import Request, Verdict
from lade.core.tree import Draft
from lade.drafters.blend import BlendDrafter
from lade.drafters.workspace import TreePlan, Workspace
from lade.memory.backoff import Backoff
from lade.memory.coverage import SHARE
from lade.memory.row import COVER
from lade.memory.stages import STAGES
from lade.memory.stages import WARM as WARM_STAGE
from lade.pace.belief import Belief
from lade.pace.pace import Pace
from lade.pace.policy import PACE
from lade.pace.sharing import PACKED, PADDED, Row, Sharing
from lade.pace.timing import TIMING

BUDGET, DEEP = 48, 1000
LIKELY = range(40)  # tokens of predictable text
LOOK = 0.1  # time of drafting and learning, over a step of one token
SPREAD = (0.6, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.005)


class Costs:
    """2 % per token."""

    def __init__(self) -> None:
        self.observed: list[tuple[int, int, int]] = []

    def table(self, limit: int, context: int, rows: int) -> list[float]:
        return [1.0, *(1 + 0.02 * further for further in range(limit))]

    def known(self, tokens: int, context: int, rows: int) -> bool:
        return True

    def observe(self, tokens: int, context: int, rows: int, seconds: float, first: bool = False) -> None:
        assert seconds == pytest.approx(1)  # a look takes as long for any draft
        self.observed.append((tokens, context, rows))

    def save(self) -> None:
        pass


def likeliest(text: Sequence[int]) -> list[int]:
    """The likeliest tokens by a model of the last token."""
    return likeliest_after(text[-1])


@cache
def likeliest_after(token: int) -> list[int]:
    return random.Random(token).sample(LIKELY, len(SPREAD))


def wrong(sure: float, token: int) -> Entry:
    """Wrong tokens with a high probability."""
    tokens = random.Random(repr(("wrong", token))).sample(LIKELY, len(SPREAD))
    return tokens, [sure, *((1 - sure) * 0.5**rank for rank in range(1, len(SPREAD)))]


@cache
def wrong_table(sure: float) -> Backoff:
    """A warm table that predicts them."""
    return warm_of([wrong(sure, token) for token in range(1000)])


def table_of(sure: float | None) -> Callable[[float], Backoff] | None:
    """The same at every temperature."""
    return None if sure is None else lambda _: wrong_table(sure)


def says(drafts: Sequence[Draft], texts: Sequence[Sequence[int]], honest: bool) -> Says:
    """The model's predictions; flat if `honest`."""
    spread = [0.001] * len(SPREAD) if honest else list(SPREAD)
    return Says(lambda text: (likeliest(text), spread), drafts, texts)


@dataclass(frozen=True)
class Step:
    at: int  # tokens before it
    nodes: int
    tokens: int
    rests: bool


class Run:
    """One request, decoded in parts of different kinds."""

    def __init__(
        self, warm: float | None = None, seed: int = 0, vocabulary: int = 500, sharing: Sharing = PADDED
    ) -> None:
        self.noise, self.vocabulary = random.Random(seed), vocabulary
        # Read when a step begins, long after the one before, when its draft is made, is verified, and is learned from.
        clock = itertools.accumulate(itertools.cycle((5.0, LOOK / 2, 1.0, LOOK / 2)))
        self.costs = Costs()
        self.pace = Pace(self.costs, BUDGET, lambda: next(clock), sharing=sharing)  # type: ignore[arg-type]
        config = LookaheadConfig(mode="auto").settled()
        self.drafter = BlendDrafter(config, BUDGET, table_of(warm), pace=self.pace)
        self.request = Request(0, self.noise.choices(LIKELY, k=20), 19, 10**6)
        self.drafter.start(self.request)
        self.steps: list[Step] = []
        self.done = 0

    def decode(self, tokens: int, kind: str) -> list[Step]:
        """Decode at least so many tokens of a kind. Returns their steps."""
        first, end = len(self.steps), self.done + tokens
        while self.done < end:
            self._step(kind)
        return self.steps[first:]

    def _step(self, kind: str) -> None:
        request, text = self.request, list(self.request.tokens)
        draft = self.drafter.draft([request], [DEEP])[0]
        verdict = self.verdict(kind, text, draft)
        request.tokens += verdict.tokens
        self.drafter.observe([request], [draft], [verdict], says([draft], [text], kind == "honest"))
        self.steps.append(Step(self.done, len(draft), len(verdict.tokens), self.pace._controller.rests))
        self.done += len(verdict.tokens)

    def verdict(self, kind: str, text: Sequence[int], draft: Draft) -> Verdict:
        path, tokens = [0], []
        while True:
            tokens.append(self._choice(kind, [*text, *tokens], draft, path[-1]))
            child = draft.children.get((path[-1], tokens[-1]))
            if child is None:
                return Verdict(path, tokens)
            path.append(child)

    def _choice(self, kind: str, text: Sequence[int], draft: Draft, node: int) -> int:
        if kind == "predictable":
            return likeliest(text)[0]
        drafted = {token for parent, token in draft.children if parent == node} if kind == "adverse" else ()
        wrong = range(self.vocabulary)
        return self.noise.choice([token for token in wrong if token not in drafted] if drafted else wrong)


def width(steps: Sequence[Step]) -> float:
    """Mean tokens per forward."""
    return sum(step.nodes for step in steps) / len(steps)


# Laws

WARM = pytest.mark.parametrize("warm", [None, 0.9, 0.49], ids=("cold", "sure", "unsure"))
UNPREDICTABLE = pytest.mark.parametrize("kind", ["adverse", "random", "honest"])


@UNPREDICTABLE
@WARM
@pytest.mark.parametrize("vocabulary", [120, 1000])
def test_where_drafts_are_always_wrong_drafting_stops(warm: float | None, kind: str, vocabulary: int) -> None:
    steps = []
    for seed in range(3):
        run = Run(warm, seed, vocabulary)
        run.decode(32, kind)
        steps += run.decode(400, kind)
    assert width(steps) <= 1.05


@UNPREDICTABLE
@WARM
@pytest.mark.parametrize("vocabulary", [120, 1000])
def test_unpredictable_text_takes_one_token_a_step_and_drafting_comes_back(
    warm: float | None, kind: str, vocabulary: int
) -> None:
    widths, back = [], []
    for seed in range(8):  # a lucky draft widens the next ones for a while
        run = Run(warm, seed, vocabulary)
        run.decode(250, "predictable")
        before = run.decode(50, "predictable")
        assert width(before) > 8
        run.decode(32, kind)
        widths.append(width(run.decode(268, kind)))
        turned = run.done
        back.append(next(step.at for step in run.decode(300, "predictable") if step.tokens >= 4) - turned)
        assert width(run.steps[-4:]) > 8
    assert sum(widths) / len(widths) <= 1.05
    assert max(back) <= 32


def test_a_long_unpredictable_text_does_not_end_drafting_for_good() -> None:
    run = Run(0.9)
    run.decode(3000, "adverse")
    turned = run.done
    assert next(step.at for step in run.decode(200, "predictable") if step.tokens >= 4) - turned <= 32


def test_a_reference_is_followed_at_once_though_steps_rest() -> None:
    run = Run(0.9)
    run.decode(300, "adverse")
    while run.steps[-1].rests:
        run.decode(1, "adverse")
    while not run.steps[-1].rests:
        run.decode(1, "adverse")
    drafts = []
    for reference in (None, [7, 8, 9, 10, 11]):
        request = Request(1, [3, 5, 7], 2, 10**6)
        request.reference = reference
        run.drafter.start(request)
        drafts += run.drafter.draft([request], [DEEP])
    assert [draft.sources[:5] for draft in drafts] == [["root"], ["root", *["reference"] * 4]]


def test_the_first_draft_takes_much_of_a_reference_that_the_text_begins_with() -> None:
    """Though the last steps took one token, so that the pace asks for 8."""
    run = Run()
    run.decode(300, "adverse")
    assert run.steps[-1].nodes == 1
    request = Request(1, [3, 5, 7], 2, 10**6)
    request.reference = [*range(7, 7 + 2 * BUDGET)]
    run.drafter.start(request)
    (draft,) = run.drafter.draft([request], [DEEP])
    assert draft.tokens[:16] == request.reference[:16]
    assert len(draft) <= BUDGET


@WARM
def test_every_step_has_one_reason(warm: float | None) -> None:
    run = Run(warm)
    for kind in ("predictable", "random", "predictable"):
        run.decode(200, kind)
    decisions = run.drafter.end()
    assert sum(decisions.values()) == len(run.steps)
    assert len(decisions) >= 3
    timed = [(step.nodes, 20 + step.at, 1) for step in run.steps[:-1] if not step.rests]  # the last step is not ended
    assert TIMING.every > TIMING.warm_up
    assert run.costs.observed == timed[TIMING.every - 1 :: TIMING.every]
    assert 0 < sum(step.rests for step in run.steps) == decisions["drafts not looked for"]


def test_without_a_pace_nothing_decides() -> None:
    assert BlendDrafter(LookaheadConfig(mode="auto").settled(), 9).end() == {}


# Rows


class Rows:
    """Requests of one kind of text each, decoded together."""

    def __init__(self, kinds: Sequence[str], warm: float | None, sharing: Sharing = PACKED) -> None:
        self.run = Run(warm, sharing=sharing)
        self.kinds = dict(enumerate(kinds))
        self.requests = requests_of(self.run.drafter, *range(9, 9 + len(kinds)))

    def step(self, deepest: int = DEEP) -> dict[int, Draft]:
        """The drafts of all rows."""
        requests, texts = self.requests, [list(request.tokens) for request in self.requests]
        drafts = self.run.drafter.draft(requests, [deepest + request.row for request in requests])
        verdicts = [
            self.run.verdict(self.kinds[request.row], text, draft)
            for request, text, draft in zip(requests, texts, drafts, strict=True)
        ]
        for request, verdict in zip(requests, verdicts, strict=True):
            request.tokens += verdict.tokens
        self.run.drafter.observe(requests, drafts, verdicts, says(drafts, texts, honest=False))
        return {request.row: draft for request, draft in zip(requests, drafts, strict=True)}


@WARM
def test_a_hopeless_row_gets_its_root_and_its_neighbour_gets_nodes(warm: float | None) -> None:
    rows = Rows(["adverse", "predictable"], warm)
    for _ in range(100):
        rows.step()
    steps = [rows.step() for _ in range(100)]
    hopeless, good = ([len(step[row]) for step in steps] for row in range(2))
    assert sum(hopeless) / len(hopeless) < 1.3
    assert sum(good) / len(good) > 8
    assert rows.requests[0].state.belief.holds < 0.2 < 0.8 < rows.requests[1].state.belief.holds


def test_trees_grow_as_far_as_each_row_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows(["predictable"] * 3, 0.9)
    weights: list[list[float]] = []
    grow = Workspace.grow

    def noted(self: Workspace, memories: Any, new: Any, plans: Sequence[TreePlan], *rest: Any) -> Any:
        weights.append([plan.weight for plan in plans])
        return grow(self, memories, new, plans, *rest)

    monkeypatch.setattr(Workspace, "grow", noted)
    for request, holds in zip(rows.requests, (0.25, 0.5, 0.125), strict=True):
        request.state.belief.holds = holds
    rows.step()
    assert weights == [[0.25, 0.5, 0.125]]


def test_a_row_that_turns_predictable_gets_nodes_again() -> None:
    rows = Rows(["adverse", "predictable", "adverse"], 0.9)
    for _ in range(200):
        rows.step()
    rows.kinds[0] = "predictable"
    widths = [len(rows.step()[0]) for _ in range(48)]
    assert sum(widths[:8]) < 24
    assert min(widths[-8:]) > 4


@settings(max_examples=30)
@given(
    kinds=st.lists(st.sampled_from(["adverse", "predictable", "random"]), min_size=1, max_size=5),
    most=st.lists(st.integers(1, 20), min_size=5, max_size=5),
    deepest=st.integers(0, 6),
    warm=st.sampled_from([None, 0.9, 0.49]),
    sharing=st.sampled_from([PADDED, PACKED]),
    leaves=st.sets(st.integers(3, 20)),
)
def test_no_row_exceeds_its_limits_while_rows_join_and_leave(
    kinds: list[str], most: list[int], deepest: int, warm: float | None, sharing: Sharing, leaves: set[int]
) -> None:
    rows = Rows(kinds, warm, sharing)
    waiting = rows.requests[len(kinds) // 2 + 1 :]
    del rows.requests[len(kinds) // 2 + 1 :]
    for number in range(24):
        if number in leaves and len(rows.requests) > 1:
            del rows.requests[0]
        if number % 5 == 4 and waiting:
            rows.requests.append(waiting.pop())
        for request in rows.requests:
            request.max_nodes = most[request.row]
        drafts = rows.step(deepest)
        assert drafts.keys() == {request.row for request in rows.requests}
        for row, draft in drafts.items():
            assert 1 <= len(draft) <= most[row]
            assert max(draft.depths) <= deepest + row
    assert sum(rows.run.drafter.end().values()) == 24


# The tree


class Fixed(Pace):
    """Chooses by a list, and records its arguments."""

    fruitless = False

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes, self.rows, self.carried = list(sizes), [], []  # type: ignore[var-annotated]
        self._policy = PACE

    def begin(self, contexts: Sequence[int], beliefs: Sequence[Belief]) -> int:
        assert len(contexts) == len(beliefs)
        return BUDGET * len(beliefs)

    def verified(self) -> None:
        pass

    def ended(self) -> None:
        pass

    def choose(self, rows: Sequence[Row]) -> list[int]:
        self.rows.append([list(row.masses) for row in rows])
        size = self.sizes.pop(0)
        return [min(size, len(row.masses)) for row in rows]

    def carry(self, lengths: Sequence[int]) -> None:
        self.carried.append(list(lengths))

    def learn(self, belief: Belief, expected: float, accepted: float) -> None:
        assert 0 <= accepted <= expected <= 1 + 1e-9


def requests_of(drafter: BlendDrafter, *lengths: int) -> list[Request]:
    noise = random.Random(0)
    requests = [Request(row, noise.choices(LIKELY, k=length), length - 1, 999) for row, length in enumerate(lengths)]
    for request in requests:
        drafter.start(request)
    return requests


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, BUDGET), min_size=6, max_size=6),
    rows=st.integers(1, 3),
    deepest=st.integers(0, 6),
    budget=st.integers(1, BUDGET),
    warm=st.sampled_from([None, 0.9]),
)
def test_cut_drafts_are_valid(sizes: list[int], rows: int, deepest: int, budget: int, warm: float | None) -> None:
    """In batches too, and with the window among the sources; rows end one by one."""
    pace = Fixed(sizes)
    drafter = BlendDrafter(LookaheadConfig(mode="auto", ngram=3).settled(), budget, table_of(warm), pace=pace)
    requests = requests_of(drafter, 5, 9, 7)[:rows]
    for size in list(sizes):
        drafts = drafter.draft(requests, [deepest] * len(requests))
        assert pace.carried[-1] == [*map(len, drafts)]
        texts = [list(request.tokens) for request in requests]
        verdicts = []
        for request, draft, masses in zip(requests, drafts, pace.rows[-1], strict=True):
            assert 1 <= len(draft) <= budget
            assert max(draft.depths) <= deepest
            assert request.state.size == min(size, len(masses)) <= len(draft)
            assert set(range(request.state.size)) <= set(draft.queries) <= set(range(len(draft)))
            assert draft.children == {
                (parent, token): node
                for node, (parent, token) in enumerate(zip(draft.parents, draft.tokens, strict=True))
                if node
            }
            path = [0, *([1] if len(draft) > 1 and deepest else [])]
            verdicts.append(Verdict(path, [*(draft.tokens[node] for node in path[1:]), 77]))
            request.tokens += verdicts[-1].tokens
        drafter.observe(requests, drafts, verdicts, says(drafts, texts, honest=False))
        if len(requests) > 1 and size % 3 == 0:
            del requests[0]


def test_a_cut_tree_is_a_prefix_of_the_whole_one() -> None:
    drafts = []
    for size in (5, BUDGET):
        drafter = BlendDrafter(LookaheadConfig(mode="auto").settled(), BUDGET, table_of(0.9), pace=Fixed([size]))
        drafts += drafter.draft(requests_of(drafter, 9), [DEEP])
    small, whole = drafts
    assert (len(small), len(whole)) == (5, BUDGET)
    assert (small.tokens, small.parents) == (whole.tokens[:5], whole.parents[:5])


def test_the_probabilities_of_all_grown_nodes_decide() -> None:
    pace = Fixed([2])
    drafter = BlendDrafter(LookaheadConfig(mode="auto").settled(), BUDGET, table_of(0.5), pace=pace)
    requests = requests_of(drafter, 9)
    drafter.draft(requests, [1])
    share = requests[0].state.memory.row().floats[COVER + SHARE]
    assert 0.25 < share < 1
    weight = STAGES[WARM_STAGE].priors[0] * share
    masses = [weight * probability for probability in wrong(0.5, 0)[1]]
    assert pace.rows[0][0] == pytest.approx([1.0, *masses])
    assert list(requests[0].state.root_children.values()) == pytest.approx(masses)


def test_the_window_is_in_proportion_to_the_tree_and_is_left_out_without_one() -> None:
    """A window that was not sent is not ended for having earned nothing."""
    config = LookaheadConfig(mode="auto", ngram=3, sources=("suffix", "window")).settled()
    drafter = BlendDrafter(config, BUDGET, pace=Fixed([1, 9, 24, 1]))
    noise = random.Random(0)
    request = Request(0, [1, 2, 3] * 9, 26, 999)
    drafter.start(request)
    assert drafter.columns == 6
    windows = []
    for _ in range(4):
        text, draft = list(request.tokens), drafter.draft([request], [DEEP])[0]
        windows.append(len(request.state.window.outputs))
        request.tokens.append(noise.choice(LIKELY))
        drafter.observe([request], [draft], [Verdict([0], request.tokens[-1:])], says([draft], [text], honest=False))
        if len(windows) == 1:
            assert request.state.window.width == 6
        request.tokens += [1, 2, 3] * 11
    assert windows == [0, 1, 4, 0]  # columns of 2 nodes: a third of the tree
