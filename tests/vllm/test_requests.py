"""Requests without ids: each row's state is that of its own text, whatever joins, leaves, waits and changes places."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import vllm_engine
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_engine import LONGEST, Engine, Row, config

from lade.core.drafter import Predictions
from lade.core.request import Request, Verdict
from lade.core.tree import Draft
from lade.vllm.requests import LONGEST_ABSENCE

PROMPTS = ([1, 2, 3], [1, 2, 3], [1, 2, 4], [8, 1, 2, 3, 4, 5], [9, 1, 2, 3, 4, 5])
ACTIONS = ("step", "join", "leave", "shuffle", "wait", "preempt", "return", "cut", "twice", "missed", "chunked")


def after(text: Sequence[int]) -> int:
    """A text of few patterns, in which drafts are right now and then."""
    return (3 * text[-1] + text[-2 % len(text)] + len(text) // 16) % 11


class Watched(Engine):
    """Fails where the drafter learns of a request what the model computed for another text."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings, after)
        self.learned, drafter = 0, self.proposer._drafter
        observe = drafter.observe

        def checked(
            requests: Sequence[Request], drafts: Sequence[Draft], verdicts: Sequence[Verdict], said: Predictions
        ) -> None:
            for slot, (request, draft, verdict) in enumerate(zip(requests, drafts, verdicts, strict=True)):
                self.learned += 1
                before = request.tokens[: len(request.tokens) - len(verdict.tokens)]
                for node in range(len(draft)):
                    (line,) = said.lines_of(slot, [node])
                    assert self.computed[line] == [*before, *draft.tokens[1 : node + 1]]
                    assert said.greedy(slot, node) == after(self.computed[line])
            observe(requests, drafts, verdicts, said)

        drafter.observe = checked  # type: ignore[method-assign]

    def step(self, *arguments: Any, **options: Any) -> None:
        super().step(*arguments, **options)
        if options.get("proposes", True):
            known = [each for each in self.proposer._requests.known if each.request is not None and not each.absent]
            texts = sorted(row.text for row in self.rows if row.steps and not row.waits)
            assert sorted(each.request.tokens for each in known if each.request) == texts
            assert sorted(each.text.tolist() for each in known) == texts


def act(engine: Watched, away: list[Row], action: str, dice: random.Random) -> None:
    rows = engine.rows
    if action == "join":
        rows.append(Row([*dice.choice(PROMPTS)]))
    elif action == "chunked":
        rows.append(Row([*dice.choice(PROMPTS)], waits=2))
    elif action == "shuffle":
        dice.shuffle(rows)
    elif action == "return" and away:
        rows.insert(dice.randrange(len(rows) + 1), away.pop(dice.randrange(len(away))))
    elif action in ("leave", "wait", "preempt") and rows:
        row = rows.pop(dice.randrange(len(rows)))
        if action != "leave":
            away.append(row)
        if action == "preempt":
            row.drafted = []
    else:
        options = {"twice": {"calls": 2}, "missed": {"proposes": False}}.get(action, {})
        engine.step(lambda row: dice.randrange(5) if action == "cut" else 9, **options)


@given(st.lists(st.sampled_from(ACTIONS + ("step",) * 6), max_size=40), st.integers(0, 999))
@settings(max_examples=25)
def test_states_are_never_mixed_up(actions: list[str], seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        vllm_engine.install(patch)
        engine, away, dice = Watched(config()), [], random.Random(seed)
        engine.rows = [Row([*prompt]) for prompt in PROMPTS[:2]]
        for action in actions:
            engine.rows = [row for row in engine.rows if len(row.text) < LONGEST - 8]
            act(engine, away, action, dice)
        assert len(engine.proposer._requests.known) <= len(engine.rows) + len(away) + len(actions)


def test_rows_are_learned_in_every_step_without_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm_engine.install(monkeypatch)
    engine = Watched(config())
    engine.rows = [Row([*prompt]) for prompt in PROMPTS]
    for _ in range(6):
        engine.step()
        engine.rows.reverse()
    assert engine.learned == 5 * len(PROMPTS)
    assert sum(row.accepted for row in engine.rows) > 0


def test_rows_that_stay_where_they_are_need_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm_engine.install(monkeypatch)
    engine = Watched(config())
    engine.rows = [Row([*prompt]) for prompt in PROMPTS]
    requests, searches = engine.proposer._requests, list[int]()
    searched = requests._searched

    def noting(texts: Sequence[Any], late: bool) -> Any:
        searches.append(len(texts))
        return searched(texts, late)

    monkeypatch.setattr(requests, "_searched", noting)

    def taken(change: Callable[[], object]) -> list[int]:
        """The searches of three steps behind a change."""
        change()
        for _ in range(3):
            engine.step()
        found = [*searches]
        searches.clear()
        return found

    assert taken(lambda: None) == [5]  # all are new
    assert taken(lambda: None) == []
    assert taken(engine.rows.reverse) == [5]
    assert taken(lambda: engine.rows.pop(2)) == [4]
    assert taken(lambda: engine.rows.insert(1, Row([7, 7]))) == [5, 5]  # in the second step its place is a new one
    assert taken(engine.rows.pop) == [4]


def test_one_cut_draft_is_learned_where_it_is_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm_engine.install(monkeypatch)
    engine = Watched(config())
    engine.rows = [Row([1, 2, 3] * 5)]
    for _ in range(4):
        engine.step()
    assert engine.rows[0].drafted
    before = engine.learned
    engine.step(lambda row: 1)
    assert engine.learned == before + 1


def test_states_of_requests_that_left_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their texts too; a request that comes back starts anew, and what was drafted for it is known."""
    vllm_engine.install(monkeypatch)
    engine = Watched(config())
    engine.rows = [Row([*prompt]) for prompt in PROMPTS[2:]]
    for _ in range(3):
        engine.step()
    left = engine.rows.pop()
    for _ in range(LONGEST_ABSENCE):
        engine.step()
    requests = engine.proposer._requests
    assert len(requests.known) == 3
    engine.step()
    assert [each.absent for each in requests.known] == [0, 0]
    assert list(requests._left.values()) == [len(left.drafted) + 1]
    engine.rows.append(left)
    engine.step()
    engine.step()
    assert not requests._left
    assert len(requests.known) == 3


def test_a_row_may_be_absent_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm_engine.install(monkeypatch)
    engine = Watched(config())
    engine.rows = [Row([*prompt]) for prompt in PROMPTS[2:4]]
    engine.step()
    requests, known = engine.proposer._requests, [*engine.proposer._requests.known]
    for _ in range(2):
        away = engine.rows.pop()
        for _ in range(LONGEST_ABSENCE):
            engine.step()
        assert [each.absent for each in requests.known] == [0, LONGEST_ABSENCE]
        engine.rows.append(away)
        engine.step()
    assert requests.known == known


def test_what_is_remembered_of_requests_that_left_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm_engine.install(monkeypatch)
    engine = Watched(config())  # 4 rows at most
    for prompt in range(40):
        engine.rows = [Row([prompt % 30, prompt // 30])]
        engine.step()
    requests = engine.proposer._requests
    assert len(requests.known) == LONGEST_ABSENCE + 1
    assert len(requests._left) == 4 * 4
