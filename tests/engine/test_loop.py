"""The decode loop, with a model that is a table: every request gets the text that one token at a time would give."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lade import LookaheadConfig
from lade.core.request import Request, Verdict
from lade.core.stats import Clock
from lade.core.tally import together
from lade.core.tree import Draft, TreeBuilder
from lade.drafters.jacobi import JacobiDrafter
from lade.engine.admission import retired
from lade.engine.emission import AtOnce
from lade.engine.loop import DecodeLoop
from lade.engine.stopping import HostRule
from lade.engine.stream import Stream
from lade.pace.reading import UNLIMITED, WholeReading

VOCABULARY = 5
STEP_TOKENS = 8  # of a step that reads prompts


class Table:
    """Continues a text by its last two tokens."""

    def __init__(self, seed: int) -> None:
        noise = random.Random(seed)
        self.next = [[noise.randrange(VOCABULARY) for _ in range(VOCABULARY)] for _ in range(VOCABULARY)]

    def __call__(self, text: Sequence[int]) -> int:
        return self.next[text[-2] if len(text) > 1 else 0][text[-1]]

    def write(self, prompt: Sequence[int], limit: int, ends: frozenset[int]) -> list[int]:
        """One token at a time."""
        text = list(prompt)
        for _ in range(limit):
            text.append(self(text))
            if text[-1] in ends:
                break
        return text


class Outputs:
    """The table's choices after the nodes of a forward, for the nodes that were asked for."""

    def __init__(self, table: Table, texts: Sequence[Sequence[int]], drafts: Sequence[Draft]) -> None:
        self.table, self.texts, self.drafts = table, [list(text) for text in texts], drafts

    def greedy(self, slot: int, node: int) -> int:
        draft = self.drafts[slot]
        assert node in draft.queries
        return self.table(self.texts[slot] + path_tokens(draft, root_path(draft, node)))

    def nan_rows(self, slots: Sequence[int]) -> list[int]:
        return []


def root_path(draft: Draft, node: int) -> list[int]:
    return [0] if node == 0 else [*root_path(draft, draft.parents[node]), node]


def accepted(requests: Sequence[Request]) -> int:
    return sum(together(request.tally for request in requests).accepted.values())


def path_tokens(draft: Draft, path: Sequence[int]) -> list[int]:
    return [draft.tokens[node] for node in path]


class Target:
    """Slots of cached texts, which the loop must keep together with their requests.

    Args:
        prompts: those of the slots that are open from the start.
        packed: whether it takes all requests of a step in one forward.
        most: nodes of a draft.
    """

    def __init__(
        self, table: Table, prompts: Sequence[Sequence[int]], packed: bool = True, most: int = 1 << 30
    ) -> None:
        self.table, self.clock, self.vocabulary, self.packed, self.most = table, Clock(), VOCABULARY, packed, most
        self.texts: dict[int, list[int]] = {slot: list(prompt) for slot, prompt in enumerate(prompts)}
        self.prompts = {slot: len(prompt) for slot, prompt in enumerate(prompts)}
        self.drafts: Sequence[Draft] = []
        self.untimed = self.undisturbed = False
        self.trusting: list[bool] = []  # whether each forward might take the model for what it was
        self.widths: list[int] = []
        self.read, self.decoded = 0, list[int]()  # tokens of prompts, and of each draft, since `end_step`

    def end_step(self) -> tuple[int, list[int]]:
        """What a step computed: tokens of prompts, and of each draft."""
        found, self.read, self.decoded = (self.read, self.decoded), 0, []
        return found

    def first(self) -> Outputs:
        """After the prefill: the last prompt token as a draft of its own, which is cached already."""
        drafts = [TreeBuilder(text[-1]).build() for text in self.texts.values()]
        return Outputs(self.table, [text[:-1] for text in self.texts.values()], drafts)

    def open(self, slot: int, tokens: int, most: int) -> None:
        assert slot not in self.texts
        assert tokens < most
        self.texts[slot], self.prompts[slot] = [], tokens

    def close(self, slot: int) -> None:
        del self.texts[slot]

    def depth_limit(self, slot: int, remaining: int) -> int:
        return remaining - 1

    def max_nodes(self, slots: Sequence[int]) -> int:
        return self.most

    def discard(self, slots: Sequence[int]) -> None:
        raise AssertionError("no logits were NaN")

    def forward(self, slots: Sequence[int], drafts: Sequence[Draft]) -> Outputs:
        self.trusting.append(self.undisturbed)
        texts = [self.texts[slot] for slot in slots]
        reading = [len(text) < self.prompts[slot] for slot, text in zip(slots, texts, strict=True)]
        assert self.packed or len(slots) == 1 or not any(reading), "unequal trees in one forward"
        self.read += sum(len(draft) for draft, reads in zip(drafts, reading, strict=True) if reads)
        self.decoded += [len(draft) for draft, reads in zip(drafts, reading, strict=True) if not reads]
        for text, draft, reads in zip(texts, drafts, reading, strict=True):
            assert len(draft) <= self.most
            assert reads or draft.tokens[0] == self.table(text), "a draft stands in another request's slot"
        with self.clock.forward(sum(map(len, drafts)), len(drafts), max(map(len, drafts))):
            self.drafts = drafts
        self.widths.append(len(drafts))
        return Outputs(self.table, texts, drafts)

    def keep(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        for slot, draft, path in zip(slots, self.drafts, paths, strict=True):
            assert list(path) == root_path(draft, path[-1])
            self.texts[slot] += path_tokens(draft, path)


def run(
    table: Table,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    drafter: Any,
    ends: frozenset[int] = frozenset(),
) -> tuple[list[Request], Target]:
    target, requests = Target(table, prompts), requests_of(prompts, limits, ends)
    decode(requests, target, drafter)
    return requests, target


def requests_of(
    prompts: Sequence[Sequence[int]], limits: Sequence[int], ends: frozenset[int] = frozenset()
) -> list[Request]:
    requests = [
        Request(row, list(prompt), len(prompt), limit)
        for row, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
    ]
    emission = AtOnce(requests, Stream(None, requests, 0), None, HostRule(ends), None)
    for request in requests:
        request.emission = emission
    return requests


def decode(requests: list[Request], target: Target, drafter: Any) -> None:
    loop = DecodeLoop(target, drafter, slots=len(requests))
    loop.adopt(requests, target.first())
    while loop.step():
        pass


# The law

PROMPTS = st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6), min_size=1, max_size=4)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 50),
    prompts=PROMPTS,
    window=st.integers(1, 5),
    ngram=st.integers(2, 5),
    pools=st.booleans(),
    ends=st.frozensets(st.integers(0, VOCABULARY - 1), max_size=1),
    data=st.data(),
)
def test_every_row_as_if_alone(
    seed: int,
    prompts: list[list[int]],
    window: int,
    ngram: int,
    pools: bool,
    ends: frozenset[int],
    data: st.DataObject,
) -> None:
    table, limits = Table(seed), [data.draw(st.integers(1, 25)) for _ in prompts]
    config = LookaheadConfig(mode="lookahead", window=window, ngram=ngram, pool_from_prompt=pools)
    requests, target = run(table, prompts, limits, JacobiDrafter(config.settled()), ends)
    plain = [table.write(prompt, limit, ends) for prompt, limit in zip(prompts, limits, strict=True)]
    assert [request.tokens for request in requests] == plain
    assert all(request.finished for request in requests)
    assert list(target.texts.values()) == [text[:-1] for text in plain]
    new = sum(request.emitted for request in requests)
    assert new == len(requests) + target.clock.steps + accepted(requests)
    assert target.widths == sorted(target.widths, reverse=True)


# A drafter that knows the text, or half of it


class Knowing:
    """Drafts what the table will write, `depth` tokens of it, the `wrong`-th changed; and notes its calls."""

    def __init__(self, table: Table, depth: int, wrong: int | None = None) -> None:
        self.table, self.depth, self.wrong = table, depth, wrong
        self.started: list[Request] = []
        self.pauses = 0
        self.verdicts: list[Verdict] = []

    def start(self, request: Request) -> None:
        assert request.emitted == 1
        assert not request.finished
        self.started.append(request)

    def draft(self, requests: Sequence[Request], depths: Sequence[int]) -> list[Draft]:
        return [self._draft(request, depth) for request, depth in zip(requests, depths, strict=True)]

    def _draft(self, request: Request, depth: int) -> Draft:
        assert depth == request.limit - request.emitted - 1
        nodes = min(depth, self.depth, request.max_nodes - 1)
        text = self.table.write(request.tokens, nodes, frozenset())[len(request.tokens) :]
        if self.wrong is not None and len(text) > self.wrong:
            text[self.wrong] += 1
        builder = TreeBuilder(request.tokens[-1])
        builder.add_path(0, text, "known")
        return builder.build()

    def observe(
        self, requests: Sequence[Request], drafts: Sequence[Draft], verdicts: Sequence[Verdict], predictions: Any
    ) -> None:
        for request, verdict in zip(requests, verdicts, strict=True):
            assert request.tokens[len(request.tokens) - len(verdict.tokens) :] == verdict.tokens
        self.verdicts += verdicts

    def pause(self) -> None:
        self.pauses += 1

    def stop(self, request: Request) -> None:
        assert request.finished or request.cancelled


@pytest.mark.parametrize(
    ("depth", "wrong", "limit", "steps"),
    [
        (0, None, 10, 9),  # nothing but the root: one token a step
        (3, None, 9, 2),  # a full match of 3 yields 4: 1 + 4 + 4
        (3, None, 10, 3),
        (8, None, 10, 1),  # never deeper than what is still allowed
        (99, None, 10, 1),
        (3, 0, 10, 9),  # never accepted
        (3, 1, 9, 4),  # one of three accepted: two tokens a step
        (3, 2, 10, 3),
        (3, None, 1, 0),  # the prefill's token was all
        (3, None, 2, 1),
    ],
)
def test_steps(depth: int, wrong: int | None, limit: int, steps: int) -> None:
    table = Table(1)
    drafter = Knowing(table, depth, wrong)
    requests, target = run(table, [[1, 2, 3]], [limit], drafter)
    assert requests[0].tokens == table.write([1, 2, 3], limit, frozenset())
    assert target.clock.steps == steps
    assert accepted(requests) == limit - 1 - steps
    assert len(drafter.verdicts) == steps
    assert drafter.started == (requests if limit > 1 else [])


def test_rows_leave_when_they_are_done() -> None:
    """Limits 1, 9, 2, 5 at one token a step: the forward carries three rows, then two, then one."""
    table = Table(2)
    requests, target = run(table, [[1], [2], [3], [4]], [1, 9, 2, 5], Knowing(table, 0))
    assert [request.emitted for request in requests] == [1, 9, 2, 5]
    assert target.widths == [3, 2, 2, 2, 1, 1, 1, 1]


class Selective(Knowing):
    """Refuses requests that get no drafts, and notes which it learns from."""

    def start(self, request: Request) -> None:
        assert request.drafts
        super().start(request)

    def _draft(self, request: Request, depth: int) -> Draft:
        assert request in self.started
        return super()._draft(request, depth)

    def observe(self, requests: Sequence[Request], drafts: Sequence[Draft], *others: Any) -> None:
        assert [len(draft) > 1 for draft in drafts] == [True] * len(requests)
        super().observe(requests, drafts, *others)


@pytest.mark.parametrize("drafts", [(True, False, True), (False, False), (True, True), (False, True)])
def test_without_drafts(drafts: tuple[bool, ...]) -> None:
    """Such a request takes a step per token, and none of the drafter's time; a step of both kinds is not timed."""
    table = Table(1)
    drafter, prompts = Selective(table, 2), [[row + 1] for row in range(len(drafts))]
    requests, target = requests_of(prompts, [7] * len(drafts)), Target(table, prompts)
    for request, wanted in zip(requests, drafts, strict=True):
        request.drafts = wanted
    decode(requests, target, drafter)
    assert [request.tokens for request in requests] == [table.write(prompt, 7, frozenset()) for prompt in prompts]
    assert [sum(request.tally.accepted.values()) for request in requests] == [4 * wanted for wanted in drafts]
    assert drafter.started == [request for request in requests if request.drafts]
    assert drafter.pauses == (0 if all(drafts) else 6)


# Joining and leaving


class RefusalError(Exception):
    """What a test's stop rule raises."""


class Fussy(HostRule):
    """Raises at the so many-th token."""

    def __init__(self, at: int) -> None:
        super().__init__(frozenset())
        self.at = at

    def __call__(self, request: Request) -> bool:
        if request.emitted == self.at:
            raise RefusalError
        return super().__call__(request)


def request_of(prompt: Sequence[int], limit: int, rule: HostRule) -> Request:
    request = Request(0, list(prompt), len(prompt), limit)
    request.emission = AtOnce([request], Stream(None, [request], 0), None, rule, None)
    return request


ARRIVALS = st.lists(
    st.tuples(
        st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=18),  # prompt
        st.integers(1, 12),  # limit
        st.sampled_from(["plain", "end", "cancelled", "error"]),
        st.integers(0, 3),  # steps before it arrives
        st.integers(1, 6),  # steps after which it is cancelled, or tokens after which it raises
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=80)
@given(
    seed=st.integers(0, 20),
    arrivals=ARRIVALS,
    slots=st.integers(1, 4),
    packed=st.booleans(),
    depth=st.integers(0, 4),
    wrong=st.sampled_from([None, 0, 1]),
    bound=st.sampled_from([0, 1, UNLIMITED]),
)
def test_neighbours_do_not_matter(
    seed: int, arrivals: list[Any], slots: int, packed: bool, depth: int, wrong: int | None, bound: int
) -> None:
    """Whoever joins, waits, is cancelled or raises beside it: a request's text is that of the request alone."""
    table = Table(seed)
    target = Target(table, [], packed, most=7)
    drafter, reading = Knowing(table, depth, wrong), Reading(bound)
    loop = DecodeLoop(target, drafter, slots, step_tokens=STEP_TOKENS, reading=reading)
    requests, cancels = [], list[tuple[int, Request]]()
    ends = frozenset({seed % VOCABULARY})
    for prompt, limit, kind, wait, when in arrivals:
        for _ in range(wait):
            step(loop, cancels)
        rule = {"end": HostRule(ends), "error": Fussy(when)}.get(kind, HostRule(frozenset()))
        requests.append(request_of(prompt, limit, rule))
        loop.submit(requests[-1])
        if kind == "cancelled":
            cancels.append((when, requests[-1]))
    while step(loop, cancels):
        pass
    assert not target.texts
    assert all(request.finished for request in requests)
    for request, (prompt, limit, kind, _, when) in zip(requests, arrivals, strict=True):
        whole = table.write(prompt, limit, ends if kind == "end" else frozenset())
        if kind == "cancelled":
            assert request.tokens == whole[: len(request.tokens)]
        elif kind == "error" and when <= limit:
            assert isinstance(request.error, RefusalError)
            assert request.tokens == whole[: len(prompt) + when]
        else:
            assert request.error is None
            assert request.tokens == whole


def step(loop: DecodeLoop, cancels: list[tuple[int, Request]]) -> bool:
    left = loop.step()
    read, drafts = loop.target.end_step()  # type: ignore[attr-defined]
    if read:
        share = STEP_TOKENS // 4
        assert read + sum(drafts) <= max(STEP_TOKENS, len(drafts) + share)
        assert read <= STEP_TOKENS - (share if drafts else 0)
    cancels[:] = [(when - 1, request) for when, request in cancels]
    for when, request in cancels:
        if when == 0:
            loop.cancel(request)
    return left


def test_a_closed_loop() -> None:
    table = Table(0)
    target = Target(table, [])
    loop = DecodeLoop(target, Knowing(table, 2), slots=1)
    requests = [request_of([1, 2], 9, HostRule(frozenset())) for _ in range(2)]
    for request in requests:
        loop.submit(request)
    loop.step()
    loop.close()
    loop.close()
    assert all(request.finished for request in requests)
    assert not target.texts
    with pytest.raises(RuntimeError, match="must be open to take a request, got a closed one"):
        loop.submit(requests[0])
    with pytest.raises(RuntimeError, match="must be open to step, got a closed one"):
        loop.step()


def test_one_thread_steps() -> None:
    table = Table(0)
    target = Target(table, [])
    loop = DecodeLoop(target, Knowing(table, 2), slots=1)
    forward, raised = target.forward, list[str]()

    def meanwhile(*args: Any) -> Outputs:
        with pytest.raises(RuntimeError, match="by one thread at a time") as error:
            loop.step()
        raised.append(str(error.value))
        return forward(*args)

    target.forward = meanwhile  # type: ignore[method-assign]
    loop.submit(request_of([1], 1, HostRule(frozenset())))
    assert not loop.step()
    assert len(raised) == 1


class Reading(WholeReading):
    """Notes what steps were, and bounds their prompt tokens."""

    def __init__(self, bound: int = UNLIMITED) -> None:
        self.bound, self.steps = bound, list[tuple[int, int]]()

    def most(self, rows: int, unread: int) -> int:
        return self.bound if rows else UNLIMITED

    def end(self, rows: int, tokens: int) -> None:
        self.steps.append((rows, tokens))


def test_steps_that_read_prompts_are_no_measure_of_time() -> None:
    table = Table(0)
    drafter, reading = Knowing(table, 2), Reading()
    loop = DecodeLoop(Target(table, []), drafter, slots=2, step_tokens=STEP_TOKENS, reading=reading)
    loop.submit(request_of([1] * (2 * STEP_TOKENS), 30, HostRule(frozenset())))
    pauses = []
    for step_ in range(6):
        if step_ == 3:
            loop.submit(request_of([2], 30, HostRule(frozenset())))
        loop.step()
        pauses.append(drafter.pauses)
    assert pauses == [1, 2, 2, 3, 3, 3]
    assert reading.steps == [(0, STEP_TOKENS), (0, STEP_TOKENS), (1, 0), (1, 1), (2, 0), (2, 0)]


def test_steps_that_the_target_does_not_time_are_no_measure_of_time() -> None:
    table = Table(0)
    target, drafter = Target(table, []), Knowing(table, 2)
    loop = DecodeLoop(target, drafter, slots=1)
    loop.submit(request_of([1], 30, HostRule(frozenset())))
    pauses = []
    for untimed in (False, False, True, True, False):
        target.untimed = untimed
        loop.step()
        pauses.append(drafter.pauses)
    assert pauses == [1, 1, 2, 3, 3]  # the first step reads the prompt


def test_the_model_is_trusted_where_nothing_but_lade_has_run() -> None:
    """Not where a request begins, nor beside one for which others' code runs, nor behind its last step."""
    table = Table(0)
    target = Target(table, [])
    loop = DecodeLoop(target, Knowing(table, 0), slots=2)

    def submit(limit: int, undisturbed: bool) -> None:
        request = request_of([1], limit, HostRule(frozenset()))
        request.undisturbed = undisturbed
        loop.submit(request)

    submit(7, undisturbed=True)
    for _ in range(3):
        loop.step()
    submit(2, undisturbed=False)
    while loop.step():
        pass
    submit(3, undisturbed=True)
    while loop.step():
        pass
    assert target.trusting == [False, True, True, False, False, False, True, False, True, True]


class Following(Knowing):
    """Notes steps that are drafted elsewhere: the tokens of their texts afterwards."""

    def __init__(self, table: Table, depth: int) -> None:
        super().__init__(table, depth)
        self.learned: list[list[int]] = []

    def follow(self, requests: Sequence[Request]) -> None:
        assert all(request in self.started for request in requests)

    def learn(self, requests: Sequence[Request], *others: Any) -> None:
        self.learned.append([len(request.tokens) for request in requests])


class EveryOther:
    """Rounds for texts of an even number of tokens, one token each."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.asked, self.over = list[list[int]](), list[list[int]]()

    def next(self, requests: Sequence[Request]) -> Any:
        self.asked.append([len(request.tokens) for request in requests])
        if any(len(request.tokens) % 2 for request in requests):
            return None
        drafts = [Draft.alone(request.tokens[-1]) for request in requests]
        return drafts, self.target.forward([request.slot for request in requests], drafts)

    def ended(self, requests: Sequence[Request]) -> None:
        self.over.append([len(request.tokens) for request in requests])


@pytest.mark.parametrize("packed", [True, False])
def test_rounds_are_asked_where_all_get_drafts_and_no_prompt_is_read(packed: bool) -> None:
    """Their steps are no measure of time for those that read prompts."""
    table, reading = Table(0), Reading()
    target, drafter = Target(table, [], packed), Following(table, 0)
    rounds = EveryOther(target)
    loop = DecodeLoop(target, drafter, slots=2, step_tokens=STEP_TOKENS, reading=reading, rounds=rounds)
    first, second = (request_of([1] * (2 * STEP_TOKENS), 12, HostRule(frozenset())) for _ in range(2))
    third = request_of([2], 3, HostRule(frozenset()))
    third.drafts = False
    loop.submit(first)
    for _ in range(2):
        loop.step()
    assert rounds.asked == []
    for _ in range(4):
        loop.step()
    assert rounds.asked == [[17], [18], [19], [20]]
    loop.submit(third)
    for _ in range(3):
        loop.step()
    assert len(rounds.asked) == 4
    reading.bound = 0  # the next step is to time decoding
    loop.submit(second)
    before = len(reading.steps)
    loop.step()
    assert len(rounds.asked) == 4
    assert reading.steps[before:] == [(1, 0)]
    reading.bound = STEP_TOKENS
    while loop.step():
        pass
    assert rounds.over == [[length + 1 for length in lengths] for lengths in rounds.asked]
    made = len(drafter.learned)
    assert drafter.learned == [lengths for lengths in rounds.over if all(length % 2 for length in lengths)]
    assert made > 3
    assert len(reading.steps) == len(target.widths) - made - (0 if packed else 4)
    for request in (first, second, third):
        assert request.tokens == table.write(request.tokens[: request.prompt_length], request.limit, frozenset())


@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_the_requests_that_go_on_stay(finished: list[bool]) -> None:
    """At most one request per finished one changes its place."""
    requests = [Request(row, [row], 1, 9, finished=done) for row, done in enumerate(finished)]
    active = retired(requests)
    assert sorted(request.row for request in active) == [row for row, done in enumerate(finished) if not done]
    assert sum(request.row != row for row, request in enumerate(active)) <= sum(finished)
    assert [request.row for request in requests] == list(range(len(requests)))
